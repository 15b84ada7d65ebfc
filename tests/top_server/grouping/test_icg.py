from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.messages import MOST_SAMPLES
from top_server.grouping import GROUPINGS, GroupingRequest, Plan
from top_server.grouping.cpd import cpd_median, cpd_pairs
from top_server.grouping.icg import normalised
from top_server.grouping.refining import difference

icg = GROUPINGS["icg"]


STARTS = ("uniform", "k-means++")
#: The clients with counts too large for the flow: none, one, or all.
GIANTS = (slice(0), slice(1), slice(None))


def request_for(histograms: NDArray[np.int64], groups: int, seed: int = 0, **options: str) -> GroupingRequest:
    clients = tuple(range(len(histograms)))
    return GroupingRequest(1, groups, seed, clients, histograms.sum(axis=1), histograms, options=options)


def skewed(clients: int, classes: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return rng.multinomial(100, rng.dirichlet(np.full(classes, 0.3), clients))


def with_giants(histograms: NDArray[np.int64], giants: slice) -> NDArray[np.int64]:
    """The histograms, in which the rows `giants` count about as many samples as a client may tell."""
    histograms[giants] *= MOST_SAMPLES // histograms.sum(axis=1).max()
    return histograms


def group_histograms(plan: Plan, histograms: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([histograms[list(group)].sum(axis=0) for group in plan.groups])


def test_six_clients_of_two_kinds_are_paired_across_kinds() -> None:
    six = np.array([(9, 1), (8, 2), (10, 0), (1, 9), (2, 8), (0, 10)])
    for seed in range(20):
        plan = icg(request_for(six, groups=3, seed=seed))
        assert all(a in {0, 1, 2} and b in {3, 4, 5} for a, b in plan.groups)
        sums = group_histograms(plan, six)
        assert sums.min() >= 8
        assert sums.max() <= 12


def six_types() -> NDArray[np.int64]:
    """60 clients, 10 of each type; type t has 21 samples of class t and 1 of each other of the 10 classes."""
    return 1 + 20 * np.eye(10, dtype=np.int64)[np.arange(60) % 6]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("seed", range(20))
def test_every_group_of_60_clients_has_one_client_of_each_of_6_types(start: str, seed: int) -> None:
    histograms = six_types()
    types = histograms.argmax(axis=1)
    plan = icg(request_for(histograms, groups=10, seed=seed, start=start))
    assert [sorted(types[list(group)]) for group in plan.groups] == [list(range(6))] * 10
    assert cpd_pairs(group_histograms(plan, histograms)).max() == 0


def test_random_groups_of_the_6_types_are_far_apart() -> None:
    histograms = six_types()
    medians = [
        cpd_median(group_histograms(GROUPINGS["random"](request_for(histograms, 10, seed)), histograms))
        for seed in range(20)
    ]
    assert 0.06 <= np.median(medians) <= 0.08


@pytest.mark.parametrize("groups", [5, 10, 20])
def test_icg_groups_are_nearer_than_random_groups_and_far_nearer_than_clients(groups: int) -> None:
    for seed in range(8):
        histograms = skewed(100, 10, seed)
        request = request_for(histograms, groups, seed)
        ours, random = (
            cpd_median(group_histograms(GROUPINGS[name](request), histograms)) for name in ("icg", "random")
        )
        assert ours <= random
        assert random < 0.5 * cpd_median(histograms)


@given(
    clients=st.integers(1, 40), groups=st.integers(1, 45), seed=st.integers(0, 2**32), giants=st.sampled_from(GIANTS),
    mode=st.sampled_from(["exact", "paper", "all"]), start=st.sampled_from(STARTS),
    normalise=st.sampled_from(["true", "false"]), refine=st.sampled_from(["true", "false"]),
)  # fmt: skip
@settings(deadline=None, max_examples=160)
def test_every_client_is_used_at_most_once_and_sizes_are_those_of_the_mode(
    clients: int, groups: int, seed: int, giants: slice, mode: str, start: str, normalise: str, refine: str
) -> None:
    options = {"mode": mode, "start": start, "normalise": normalise, "refine": refine}
    request = request_for(with_giants(skewed(clients, 4, seed), giants), groups, seed, **options)
    plan = icg(request)
    plan.check(request)
    groups = min(groups, clients)
    members = clients // groups
    sizes = [len(group) for group in plan.groups]
    if mode == "all":
        assert not plan.idle
        assert len(sizes) == groups
        assert set(sizes) <= {members, members + 1}
    else:
        assert sizes == [members] * (groups if mode == "exact" else clients // members)


def test_the_round_of_the_paper_builds_52_groups_in_paper_mode() -> None:
    plan = icg(request_for(skewed(368, 10, 0), 50, mode="paper"))
    assert [len(group) for group in plan.groups] == [7] * 52
    assert len(plan.idle) == 4


def test_one_group_is_everybody_and_as_many_groups_as_clients_are_single_clients() -> None:
    histograms = skewed(9, 4, 0)
    assert icg(request_for(histograms, 1)).groups == (tuple(range(9)),)
    assert sorted(icg(request_for(histograms, 9)).groups) == [(client,) for client in range(9)]
    assert sorted(icg(request_for(histograms, 50)).groups) == [(client,) for client in range(9)]


def test_equal_clients_can_be_grouped() -> None:
    for start in STARTS:
        request = request_for(np.full((12, 3), 5), 4, start=start)
        plan = icg(request)
        plan.check(request)
        assert [len(group) for group in plan.groups] == [3] * 4


def test_every_round_and_every_seed_groups_anew() -> None:
    request = request_for(skewed(20, 4, 0), 4)
    assert len({icg(replace(request, round=r, seed=s)) for r in range(3) for s in range(3)}) == 9


def test_every_client_idles_in_some_round() -> None:
    request = request_for(skewed(7, 4, 0), 3)
    assert {client for r in range(60) for client in icg(replace(request, round=r)).idle} == set(range(7))


def test_raw_counts_part_clients_by_quantity_and_normalised_ones_by_mix() -> None:
    histograms = np.array([(40, 0), (4, 0), (4, 0), (0, 4), (0, 4), (0, 40)])
    mixes = [
        {tuple(sorted(int(histograms[client].argmax()) for client in group)) for group in plan.groups}
        for seed in range(20)
        for plan in [icg(request_for(histograms, 3, seed, normalise="true"))]
    ]
    assert mixes == [{(0, 1)}] * 20


@pytest.mark.parametrize("mode", ["exact", "paper", "all"])
def test_refined_groups_differ_far_less_than_those_picked_at_random(mode: str) -> None:
    histograms = skewed(128, 10, 0)
    picked, refined = (
        [
            difference(group_histograms(icg(request_for(histograms, 10, seed, mode=mode, refine=refine)), histograms))
            for seed in range(4)
        ]
        for refine in ("false", "true")
    )
    assert max(refined) < 0.4 * min(picked)


def test_refining_changes_neither_who_idles_nor_which_clusters_there_are() -> None:
    histograms = six_types()[:58]
    for seed in range(3):
        picked, refined = (icg(request_for(histograms, 9, seed, refine=refine)) for refine in ("false", "true"))
        assert picked.idle == refined.idle
        assert icg(request_for(histograms, 9, seed, refine="true")) == refined
        assert icg(request_for(histograms, 9, seed)) == picked


def test_normalised_histograms_share_a_total_and_an_empty_one_stays_empty() -> None:
    scaled = normalised(np.array([(1, 3), (100, 300), (0, 0)]))
    assert scaled[0].tolist() == scaled[1].tolist() == [2**14, 3 * 2**14]
    assert scaled[2].tolist() == [0, 0]


@pytest.mark.parametrize("normalise", ["false", "true"])
@pytest.mark.parametrize("giants", GIANTS[1:])
@pytest.mark.parametrize("groups", range(1, 10))
def test_counts_too_large_for_the_flow_are_grouped_with_and_without_their_sizes(
    groups: int, giants: slice, normalise: str
) -> None:
    """What one client tells of itself does not end the run."""
    request = request_for(with_giants(skewed(8, 3, 0), giants), groups, normalise=normalise)
    plan = icg(request)
    plan.check(request)
    assert [len(group) for group in plan.groups] == [8 // min(groups, 8)] * min(groups, 8)


def test_icg_without_histograms_is_refused() -> None:
    request = replace(request_for(skewed(4, 3, 0), 2), histograms=None)
    with pytest.raises(ConfigError, match="needs class histograms"):
        icg(request)


@pytest.mark.parametrize(
    ("option", "value"),
    [("mode", "most"), ("start", "zero"), ("iterations", "0"), ("normalise", "2"), ("refine", "maybe")],
)
def test_a_bad_option_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"grouping icg: option {option}"):
        icg(request_for(skewed(4, 3, 0), 2, **{option: value}))
