"""What the next best coalitions cost, and when a choice is called doubtful."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.coalition_cases import Clients, any_clients, many_clients
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.coalition_margin import margin
from top_server.grouping.coalitions import Solution, members, solve


def solved(some: Clients) -> Solution:
    return solve(some.distances, some.sizes, some.weight, 5, np.random.default_rng(0))


def neighbours(groups: list[list[int]], count: int) -> list[list[list[int]]]:
    """All partitions that one move or one merge makes."""
    labels = np.zeros(count, np.int64)
    for label, group in enumerate(groups):
        labels[group] = label
    found = []
    for client, label in itertools.product(range(count), range(len(groups) + 1)):
        moved = labels.copy()
        moved[client] = label
        found.append(members(moved))
    for kept, gone in itertools.combinations(range(len(groups)), 2):
        found.append(members(np.where(labels == gone, kept, labels)))
    return [other for other in found if other != groups]


@given(any_clients(fewest=2))
@settings(deadline=None, max_examples=60)
def test_the_next_best_is_another_partition_and_no_move_or_merge_is_nearer(some: Clients) -> None:
    found = solved(some)
    assert found.next_best is not None
    assert found.next_best != found.groups
    assert sorted(itertools.chain(*found.next_best)) == list(range(len(some.sizes)))
    nearest = min(some.objective(other) for other in neighbours(found.groups, len(some.sizes)))
    assert some.objective(found.next_best) <= nearest + 1e-9 * (1 + nearest)


def test_the_next_best_of_many_is_found_among_moves_merges_and_ends_of_restarts() -> None:
    for seed in range(5):
        some = many_clients(14, seed)
        found = solved(some)
        others = [groups for groups in some.descents(5) if groups != found.groups]
        near = min(some.objective(other) for other in [*neighbours(found.groups, 14), *others])
        assert found.next_best is not None
        assert some.objective(found.next_best) <= near + 1e-9


def test_the_margin_of_two_clients_by_hand() -> None:
    # Together: 2 * 1 / sqrt(200) + (100 * 0.02 + 100 * 0.02) / 200 = 0.141421 + 0.02; alone: 2 / sqrt(100) = 0.2.
    distances, errors = np.array([[0, 0.02], [0.02, 0]]), np.array([[0, 0.03], [0.03, 0]])
    sizes = np.array([100.0, 100.0])
    solution = solve(distances, sizes, 1.0, 1, np.random.default_rng(0))
    found = margin(solution, distances, errors, sizes, 1.0, [4, 9])
    assert found is not None
    assert found.objective == pytest.approx(0.161421, abs=1e-6)
    assert found.more == pytest.approx(0.2 - 0.161421, abs=1e-6)
    assert found.error == pytest.approx(0.03)  # the objective has the distance once: 100 / 200 in each direction
    assert found.instead == "{4} {9}"
    assert found.doubtful
    assert str(found) == "objective 0.1614; the next best, {4} {9}, costs 0.0386 more (standard error 0.03)"
    sure = margin(solution, distances, errors / 2, sizes, 1.0, [4, 9])
    assert sure is not None
    assert not sure.doubtful


@pytest.mark.parametrize(("distance", "doubtful"), [(0.0585, True), (0.02, False)])
def test_without_errors_a_margin_of_less_than_a_hundredth_is_doubtful(distance: float, doubtful: bool) -> None:
    distances, sizes = np.array([[0, distance], [distance, 0]]), np.array([100.0, 100.0])
    solution = solve(distances, sizes, 1.0, 1, np.random.default_rng(0))
    found = margin(solution, distances, np.full((2, 2), np.nan), sizes, 1.0, [0, 1])
    assert found is not None
    assert found.doubtful is doubtful
    assert "standard error" not in str(found)


def asked(distances: np.ndarray, errors: np.ndarray | None, **options: str) -> GroupingRequest:
    count = len(distances)
    matrices = {"distances": distances} if errors is None else {"distances": distances, "distance_errors": errors}
    return GroupingRequest(1, 1, 0, tuple(range(count)), np.full(count, 100), matrices=matrices, options=options)


DISTANCES = np.array([[0, 0.02, 1.0], [0.02, 0, 1.0], [1.0, 1.0, 0]])


def test_a_plan_says_how_sure_it_is_and_warns_where_it_is_not() -> None:
    for error, doubtful in ((0.001, False), (0.5, True)):
        plan = GROUPINGS["fedcollab"](asked(DISTANCES, np.full((3, 3), error), c="1"))
        assert plan.groups == ((0, 1), (2,))
        assert plan.note.startswith("objective 0.2614; the next best, {0} {1}, costs 0.0386 more (standard error")
        assert bool(plan.warning) is doubtful
    assert plan.warning == f"these coalitions are not sure: {plan.note}"


def test_errors_are_not_needed_and_a_single_client_has_no_next_best() -> None:
    assert "standard error" not in GROUPINGS["fedcollab"](asked(DISTANCES, None)).note
    assert GROUPINGS["fedcollab"](asked(np.zeros((1, 1)), None)).note == ""
    ignoring = GROUPINGS["fedcollab"](asked(DISTANCES, np.full((3, 3), 0.5), ignore="distances"))
    assert "(standard error 0)" in ignoring.note


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_the_error_is_the_spread_of_the_margin_under_errors_of_that_size(seed: int) -> None:
    some = many_clients(6, seed)
    solution = solved(some)
    assert solution.next_best is not None
    rng = np.random.default_rng(seed)
    errors = np.full(some.distances.shape, 0.01)
    distances = np.clip(some.distances, 0.2, 0.8)
    np.fill_diagonal(distances, 0)
    found = margin(solution, distances, errors, some.sizes.astype(np.float64), some.weight, range(6))
    assert found is not None
    spread = []
    for _ in range(400):
        noise = np.triu(rng.normal(0, 0.01, distances.shape), 1)
        drawn = Clients(distances + noise + noise.T, some.sizes, some.weight)
        spread.append(drawn.objective(solution.next_best) - drawn.objective(solution.groups))
    assert found.error == pytest.approx(np.std(spread), rel=0.25, abs=1e-9)
