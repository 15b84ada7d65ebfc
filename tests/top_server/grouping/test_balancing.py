"""ICG's groups dealt by time: short rounds, proven by a solver, and groups that are as alike as possible then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from fedgsp.messages import MOST_SAMPLES
from top_server.grouping import GROUPINGS, GroupingRequest, Plan
from top_server.grouping.balancing import Balanced, balanced
from top_server.grouping.refining import difference
from top_server.grouping.round_time import least_time, short_groups

icg = GROUPINGS["icg"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: How long clients take: all alike, very unlike, in few steps, or one 20 times slower and some up to 5 times.
KINDS = ("alike", "unlike", "steps", "slow site")


def times_of(rng: np.random.Generator, samples: Ints, kind: str) -> Floats:
    clients, times = len(samples), samples.astype(np.float64)
    if kind == "alike":
        times = rng.uniform(0.8, 1.2, clients)
    elif kind == "unlike":
        times *= rng.lognormal(0, 0.8, clients)
    elif kind == "steps":
        times[:] = rng.integers(1, 5, clients)
        times[rng.random(clients) < 0.2] *= 20
    else:
        times[rng.random(clients) < 0.25] *= rng.uniform(2, 5)
        times[rng.integers(clients)] *= 20
    return times


def histograms_of(rng: np.random.Generator, clients: int, classes: int = 10) -> Ints:
    sizes = rng.integers(10, 200, clients)
    return np.stack([rng.multinomial(size, rng.dirichlet(np.full(classes, 0.4))) for size in sizes])


def request_for(clients: int, groups: int, seed: int, kind: str, **options: str) -> GroupingRequest:
    rng = np.random.default_rng([seed, clients, groups])
    histograms = histograms_of(rng, clients)
    samples = histograms.sum(axis=1)
    seconds = times_of(rng, samples, kind)
    there = tuple(range(clients))
    return GroupingRequest(1, groups, seed, there, samples, histograms, options=options, seconds=seconds)


def longest(groups: Any, times: NDArray[Any]) -> Any:
    return max(times[list(group)].sum() for group in groups)


def unlikeness(groups: Any, histograms: Ints) -> int:
    return difference(np.stack([histograms[list(group)].sum(axis=0) for group in groups]))


def least_by_solver(times: Ints, sizes: list[int]) -> int:
    """The least possible time of the longest group, by CP-SAT."""
    model, clients = cp_model.CpModel(), range(len(times))
    there = [[model.new_bool_var("") for _ in sizes] for _ in clients]
    most = model.new_int_var(0, int(times.sum()), "")
    for client in clients:
        model.add_exactly_one(there[client])
    for group, size in enumerate(sizes):
        model.add(sum(there[client][group] for client in clients) == size)
        model.add(sum(int(times[client]) * there[client][group] for client in clients) <= most)
    model.minimize(most)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def all_groups(clients: list[int], sizes: list[int]) -> Iterator[list[list[int]]]:
    """Every way to put clients into groups of these sizes; ways that differ by the order of groups may come again."""
    if not sizes:
        yield []
        return
    for members in combinations(clients, sizes[0]):
        for others in all_groups([client for client in clients if client not in members], sizes[1:]):
            yield [list(members), *others]


sizes_of_groups = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.integers(size, size + 1), min_size=1, max_size=3 if size > 2 else 4)
)


@given(sizes=sizes_of_groups, seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS))
@settings(deadline=None, max_examples=60)
def test_the_longest_group_takes_at_most_1_1_times_the_best_by_a_solver_and_never_less_than_the_bound(
    sizes: list[int], seed: int, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    histograms = histograms_of(rng, sum(sizes))
    times = np.asarray(np.rint(1000 * times_of(rng, histograms.sum(axis=1), kind)), np.int64)
    best = least_by_solver(times, sizes)
    assert least_time(times, sizes) <= best
    places = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    found = balanced([place.tolist() for place in places], times.astype(float), histograms, rng)
    assert [len(group) for group in found.groups] == sizes
    assert sorted(client for group in found.groups for client in group) == list(range(sum(sizes)))
    assert longest(found.groups, times) <= 1.1 * best * (1 + 1e-6)
    assert least_time(times, sizes) <= longest(short_groups(times, sizes, 0, rng), times) <= 1.1 * best


@given(
    shape=st.sampled_from([(6, 2), (8, 2), (9, 3), (8, 4), (7, 3)]), seed=st.integers(0, 2**32),
    kind=st.sampled_from(KINDS), refine=st.sampled_from(["false", "true"]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_groups_are_alike_as_before_within_5_percent_wherever_any_groups_that_are_short_enough_are(
    shape: tuple[int, int], seed: int, kind: str, refine: str
) -> None:
    request = request_for(*shape, seed, kind, mode="all", refine=refine)
    assert request.histograms is not None
    assert request.seconds is not None
    before, after = icg(replace(request, seconds=None)), icg(request)
    sizes = [len(group) for group in before.groups]
    times = np.asarray(np.rint(request.seconds / request.seconds.max() * 2**32), np.int64)
    allowed = max(least_time(times, sizes) * 1.1, longest(after.groups, times))
    most_alike = min(
        unlikeness(groups, request.histograms)
        for groups in all_groups(list(request.clients), sizes)
        if longest(groups, times) <= allowed
    )
    as_before = 1.05 * unlikeness(before.groups, request.histograms)
    assert unlikeness(after.groups, request.histograms) <= max(as_before, most_alike)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("clients", "groups"), [(24, 4), (40, 10), (100, 10), (92, 30)])
def test_rounds_of_many_clients_are_short_and_as_alike_as_before(clients: int, groups: int, kind: str) -> None:
    for seed in range(3):
        request = request_for(clients, groups, seed, kind)
        assert request.histograms is not None
        assert request.seconds is not None
        before, after = icg(replace(request, seconds=None)), icg(request)
        after.check(request)
        assert after.idle == before.idle
        assert [len(group) for group in after.groups] == [len(group) for group in before.groups]
        assert unlikeness(after.groups, request.histograms) <= 1.05 * unlikeness(before.groups, request.histograms)
        there = np.concatenate([np.array(group) for group in after.groups])
        mean = request.seconds[there].sum() / len(after.groups)
        sizes = [len(group) for group in after.groups]
        bound = max(mean, least_time(np.asarray(np.rint(request.seconds[there] * 1e6), np.int64), sizes) / 1e6)
        # In few steps no groups may be near the bound.
        assert longest(after.groups, request.seconds) <= (1.3 if kind == "steps" else 1.1) * bound * (1 + 1e-6)


@pytest.mark.parametrize("giants", [slice(1), slice(12), slice(None)])
def test_the_search_ends_whatever_numbers_of_samples_clients_tell(giants: slice) -> None:
    """Products of such counts are rounded: every exchange seems to gain, and so does the one that takes it back."""
    for seed in range(6):
        request = request_for(24, (4, 9, 12)[seed % 3], seed, "unlike", refine="true")
        assert request.histograms is not None
        histograms = request.histograms.copy()
        histograms[giants] *= MOST_SAMPLES // histograms.sum(axis=1).max()
        told = replace(request, histograms=histograms)
        icg(told).check(told)


def test_groups_that_are_even_in_time_stay_as_icg_dealt_them() -> None:
    for seed in range(5):
        request = replace(request_for(24, 6, seed, "alike"), seconds=np.full(24, 3.0))
        plan = icg(request)
        assert plan == icg(replace(request, seconds=None))
        assert plan.note == "the groups are balanced in time as dealt: the longest takes 1.00 times the least"


def test_the_plan_depends_on_the_proportions_of_times_alone_and_is_the_same_each_time() -> None:
    request = request_for(30, 5, 0, "slow site")
    assert request.seconds is not None
    plan = icg(request)
    assert plan == icg(request) == icg(replace(request, seconds=request.seconds * 8))
    assert plan != icg(replace(request, seconds=None))
    assert plan.note.startswith("balanced by time: the longest group takes 1.")


def test_clients_that_take_no_time_and_a_single_group_need_no_balance() -> None:
    request = request_for(6, 1, 0, "unlike")
    assert icg(request).groups == (tuple(range(6)),)
    still = replace(request_for(6, 3, 0, "unlike"), seconds=np.zeros(6))
    assert icg(still) == icg(replace(still, seconds=None))


@pytest.mark.parametrize(
    ("times", "sizes", "bound"),
    [
        ((20, 1, 1, 1, 1, 1), [3, 3], 22),  # the slow client with the two fastest
        ((4, 4, 4, 1, 1, 1), [3, 3], 9),  # two of three slow clients are together
        ((5, 4, 3, 1), [2, 2], 7),  # the slowest with the fastest, the two others together
        ((9, 7, 5), [2, 1], 12),  # the slowest alone
        ((3, 3, 3), [1, 1, 1], 3),
    ],
)
def test_bounds_by_hand(times: tuple[int, ...], sizes: list[int], bound: int) -> None:
    assert least_time(np.array(times), sizes) == bound == least_by_solver(np.array(times), sizes)


def test_thousands_of_clients_are_balanced() -> None:
    """More than are looked at for one exchange."""
    rng = np.random.default_rng(0)
    histograms = histograms_of(rng, 4500)
    seconds = times_of(rng, histograms.sum(axis=1), "unlike")
    groups = rng.permutation(4500).reshape(90, 50).tolist()
    found = balanced(groups, seconds, histograms, rng)
    assert isinstance(found, Balanced)
    assert found.longest <= 1.1 < found.longest_before
    assert found.unlikeness <= 1.05


def test_exchanging_keeps_the_sums_of_times_and_of_class_counts() -> None:
    from top_server.grouping.deal import Deal, best

    rng = np.random.default_rng(1)
    histograms = histograms_of(rng, 12)
    times = rng.integers(1, 100, 12)
    deal = Deal(rng.permutation(12).reshape(3, 4).tolist(), times, histograms)
    for group in (0, 1, 2, 0):
        before, found = deal.unlikeness, deal.exchanges(group, rng)
        member, other = best(found.unlike)
        expected = before + 2 * 3 * found.unlike[member, other]
        assert deal.change(group, member, int(found.others[other])) == found.unlike[member, other]
        deal.exchange(group, member, int(found.others[other]))
        assert deal.unlikeness == expected == unlikeness(deal.groups, histograms)
        assert deal.times.tolist() == [times[members].sum() for members in deal.groups]
        assert deal.times[group] == found.own[member, other]


def test_the_plan_of_seconds_for_others_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seconds have shape \(2,\) for 3 clients"):
        GroupingRequest(1, 1, 0, (0, 1, 2), np.ones(3, np.int64), seconds=np.ones(2))
    for wrong in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="seconds must be finite and at least 0"):
            GroupingRequest(1, 1, 0, (0,), np.ones(1, np.int64), seconds=np.array([wrong]))
    assert Plan(((0,),), ()).note == ""
