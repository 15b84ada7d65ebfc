from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.fedcluster import norms, split

fedcluster = GROUPINGS["fedcluster"]


NAN = float("nan")
FOUR = np.array([(1, 0), (0.9, 0.1), (-1, 0), (-0.8, -0.2)])
ALL = ((10, 11, 12, 13),)


def request(
    updates: object = None,
    settled: tuple[tuple[int, ...], ...] = (),
    round_number: int = 22,
    gram: NDArray[np.float64] | None = None,
    eps2: str = "0.9",
    **options: str,
) -> GroupingRequest:
    """Clients 10, 11, ... whose updates are the rows given, or whose products are `gram`."""
    if updates is not None:
        rows = np.array(updates, np.float64)
        gram = rows @ rows.T
    count = 4 if gram is None else len(gram)
    return GroupingRequest(
        round=round_number,
        groups=1,
        seed=0,
        clients=tuple(range(10, 10 + count)),
        sizes=np.full(count, 5),
        matrices={} if gram is None else {"gram": gram},
        options={"eps2": eps2, **options},
        settled=settled,
    )


# --- section 6


def test_the_published_updates_have_their_norms_and_halves() -> None:
    gram = FOUR @ FOUR.T
    assert norms(gram) == pytest.approx((0.035355, 1), abs=5e-7)
    first, across = split(gram)
    assert first.tolist() == [True, True, False, False]
    assert across == pytest.approx(-0.970143, abs=5e-7)
    assert fedcluster(request(FOUR, ALL)).groups == ((10, 11), (12, 13))


def test_at_first_everybody_is_together_and_no_update_is_needed() -> None:
    for round_number in (1, 2, 21):
        assert fedcluster(request(round_number=round_number)).groups == ALL
    assert fedcluster(request(FOUR)).groups == ((10, 11), (12, 13))


def test_groups_split_only_by_updates_of_a_round_after_the_least() -> None:
    assert fedcluster(request(FOUR, ALL, round_number=21)).groups == ALL
    assert len(fedcluster(request(FOUR, ALL, round_number=22)).groups) == 2
    assert fedcluster(request(FOUR, ALL, round_number=5, min_round="4")).groups == ALL
    assert len(fedcluster(request(FOUR, ALL, round_number=6, min_round="4")).groups) == 2
    assert len(fedcluster(request(FOUR, ALL, round_number=2, min_round="0")).groups) == 2


@pytest.mark.parametrize(
    ("eps1", "eps2", "splits"),
    [("0.0354", "0.999", True), ("0.0353", "0.999", False), ("0.0354", "1", False), ("9", "9", False)],
)
def test_a_group_splits_below_the_one_norm_and_above_the_other(eps1: str, eps2: str, splits: bool) -> None:
    assert (len(fedcluster(request(FOUR, ALL, eps1=eps1, eps2=eps2)).groups) == 2) == splits


def test_the_norms_are_those_of_the_demo_unless_given() -> None:
    for factor, splits in [(1.59, False), (1.61, True), (11.3, True), (11.4, False)]:
        asked = request(factor * FOUR, ALL)
        default = GroupingRequest(22, 1, 0, asked.clients, asked.sizes, matrices=asked.matrices, settled=ALL)
        assert (len(fedcluster(default).groups) == 2) == splits, factor


@pytest.mark.parametrize("rate", [0.1, 0.5, 2.0])
def test_lengths_are_of_steps_whatever_the_updates_were_divided_by(rate: float) -> None:
    for factor, splits in [(0.89, False), (0.91, True), (11.3, True), (11.4, False)]:
        asked = dataclasses.replace(request(factor / rate * FOUR, ALL), learning_rate=rate)
        assert (len(fedcluster(asked).groups) == 2) == splits, factor


def test_the_separation_must_be_above_gamma_max() -> None:
    # sqrt((1 + 0.970143) / 2)
    assert len(fedcluster(request(FOUR, ALL, gamma_max="0.9925")).groups) == 2
    assert fedcluster(request(FOUR, ALL, gamma_max="0.9926")).groups == ALL


def test_a_group_of_two_does_not_split() -> None:
    assert fedcluster(request([(1, 0), (-1, 0)], ((10, 11),))).groups == ((10, 11),)
    assert len(fedcluster(request([(1, 0), (-1, 0), (-1, 0.1)], ((10, 11, 12),), eps1="1")).groups) == 2


def test_each_group_splits_by_itself_and_only_once() -> None:
    updates = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, -3), (-1, 0, 0), (-1.1, 0, 0), (0, 0, 9), (0, 0, 9)]
    settled = ((10, 12, 14, 15), (11, 13, 16, 17))
    assert fedcluster(request(updates, settled, eps1="0.9")).groups == ((10, 12), (11, 13, 16, 17), (14, 15))
    assert len(fedcluster(request(updates, settled, eps1="9")).groups) == 4


def test_halves_are_the_two_of_complete_linkage() -> None:
    # Single linkage would cut off the last; complete linkage looks at the farthest.
    angles = np.radians([0, 20, 41, 63, 86, 110])
    first, across = split(np.cos(angles[:, None] - angles))
    assert first.tolist() == [True, True, True, True, False, False]
    assert across == pytest.approx(np.cos(np.radians(23)))


def test_the_linkage_is_an_option() -> None:
    angles = np.radians([0, 20, 41, 63, 86, 110])
    updates = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    everybody = (tuple(range(10, 16)),)
    halves = {"complete": ((10, 11, 12, 13), (14, 15)), "single": ((10, 11, 12, 13, 14), (15,))}
    for linkage, groups in halves.items():
        assert fedcluster(request(updates, everybody, eps1="9", linkage=linkage)).groups == groups


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_single_linkage_makes_the_largest_cosine_across_as_small_as_can_be(count: int, seed: int) -> None:
    """The condition of the paper's Algorithm 1, against all ways to cut in two."""
    updates = np.random.default_rng(seed).normal(size=(count, 3))
    gram = updates @ updates.T
    lengths = np.linalg.norm(updates, axis=1)
    cosines = gram / np.outer(lengths, lengths)
    halves = [np.array([code >> row & 1 for row in range(count)], bool) for code in range(1, 2 ** (count - 1))]
    least = min(cosines[np.ix_(half, ~half)].max() for half in halves)
    first, across = split(gram, "single")
    assert across == pytest.approx(least)
    assert cosines[np.ix_(first, ~first)].max() == pytest.approx(least)


def test_equally_far_clients_still_have_two_halves() -> None:
    for count in range(2, 7):
        first, across = split(np.eye(count))
        assert 0 < first.sum() < count
        assert across == 0


def test_an_update_of_no_length_has_no_direction() -> None:
    updates = np.array([(1, 0), (0, 0), (-1, 0)])
    assert split(updates @ updates.T)[1] == 0
    assert len(fedcluster(request(updates, ((10, 11, 12),))).groups) == 2


@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_norms_and_halves_are_those_of_the_updates(count: int, seed: int) -> None:
    updates = np.random.default_rng(seed).normal(size=(count, 3))
    gram = updates @ updates.T
    lengths = np.linalg.norm(updates, axis=1)
    assert norms(gram) == pytest.approx((np.linalg.norm(updates.mean(axis=0)), lengths.max()))
    cosines = gram / np.outer(lengths, lengths)
    halves = [[row] for row in range(count)]
    while len(halves) > 2:
        pairs = [(a, b) for a in range(len(halves)) for b in range(a)]
        a, b = max(pairs, key=lambda pair: cosines[np.ix_(halves[pair[0]], halves[pair[1]])].min())
        halves[b] += halves.pop(a)
    first, across = split(gram)
    assert first[0]
    assert sorted(map(sorted, halves)) == [np.flatnonzero(first).tolist(), np.flatnonzero(~first).tolist()]
    assert across == pytest.approx(cosines[np.ix_(*halves)].max())


# --- who is not known


def test_a_client_without_an_update_goes_with_the_larger_half_and_counts_for_nothing() -> None:
    updates = [(NAN, NAN), *FOUR, (-1, 0.1)]
    settled = (tuple(range(10, 16)),)
    assert fedcluster(request(updates, settled)).groups == ((10, 13, 14, 15), (11, 12))
    assert fedcluster(request(updates[:5], settled[0:0], eps1="0.0354")).groups == ((10, 11, 12), (13, 14))
    few = [(NAN, NAN), (1, 0), (-1, 0)]
    assert fedcluster(request(few, ((10, 11, 12),))).groups == ((10, 11, 12),)


def test_the_update_of_a_newcomer_counts_for_nothing() -> None:
    """It comes from another start and another round. Client 13, with a long update, would split the group."""
    updates = [(0.5, 0), (0.4, 0.1), (-0.5, 0), (-1.7, 0)]
    new = request(updates, ((10, 11, 12),), eps1="0.4", eps2="1.6")
    assert fedcluster(new).groups == ((10, 11), (12, 13))
    assert fedcluster(dataclasses.replace(new, newcomers=(13,))).groups == ((10, 11, 12, 13),)


def test_a_group_of_which_nothing_is_known_stays() -> None:
    assert fedcluster(request(np.full((4, 2), NAN), ((10, 11), (12, 13)))).groups == ((10, 11), (12, 13))


def test_a_client_without_a_group_joins_the_largest_the_first_of_equal_ones() -> None:
    assert fedcluster(request(settled=((11,), (10, 12)), round_number=3)).groups == ((10, 12, 13), (11,))
    assert fedcluster(request(settled=((13,), (10,)), round_number=3)).groups == ((10,), (11, 12, 13))


# --- what cannot be used


def test_a_missing_matrix_is_refused_once_it_is_needed() -> None:
    with pytest.raises(
        ConfigError, match=r"updates \(matrix gram\); let clients report what it is made from \(scheme fedcluster\)"
    ):
        fedcluster(request())


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \(3, 2\) for 3 clients; give it a row and a column per client"):
        fedcluster(request(gram=np.zeros((3, 2))))


@pytest.mark.parametrize("gram", [[(1, NAN), (NAN, 1)], [(1, np.inf), (np.inf, 1)], [(-1, 0), (0, 1)]])
def test_entries_that_are_no_inner_products_are_refused(gram: list[tuple[float, ...]]) -> None:
    with pytest.raises(ConfigError, match="no inner products of updates; give finite numbers, and NaN only"):
        fedcluster(request(gram=np.array(gram)))


@pytest.mark.parametrize(("name", "value"), [("eps1", "-1"), ("eps2", "x"), ("min_round", "-1"), ("gamma_max", "nan")])
@pytest.mark.parametrize("round_number", [1, 22])
def test_a_bad_value_is_refused_in_any_round(name: str, value: Any, round_number: int) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{value}'"):
        fedcluster(request(FOUR, round_number=round_number, **{name: value}))
