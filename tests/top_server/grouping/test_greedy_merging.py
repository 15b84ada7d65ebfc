from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support import plain_hcct
from top_server.grouping import greedy_merging
from top_server.grouping.greedy_merging import partition, place, utility

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    updates: Floats
    sizes: Any
    alphas: Floats

    @property
    def gram(self) -> Floats:
        gram: Floats = self.updates @ self.updates.T
        return gram

    def groups(self, wanted: int | None = None) -> list[list[int]]:
        return partition(self.gram, self.sizes, self.alphas, wanted)

    def plain(self, wanted: int | None = None) -> list[list[int]]:
        return plain_hcct.partition(self.updates, self.sizes, self.alphas, wanted)

    def utility(self, groups: list[list[int]]) -> float:
        return plain_hcct.total_utility(self.updates, self.sizes, self.alphas, groups)

    def benefit(self, a: list[int], b: list[int]) -> float:
        def u(members: list[int]) -> float:
            return utility(self.gram, self.sizes, self.alphas, members)

        return u([*a, *b]) - u(a) - u(b)


def clients(updates: object, sizes: object, alpha: float) -> Clients:
    rows = np.array(updates, np.float64)
    return Clients(rows, np.broadcast_to(np.array(sizes, np.float64), len(rows)), np.full(len(rows), float(alpha)))


def two_at(cosine: float, size: float, alpha: float) -> Clients:
    return clients([(1, 0), (cosine, math.sqrt(1 - cosine**2))], size, alpha)


@st.composite
def any_clients(draw: st.DrawFn, fewest: int = 1, most: int = 12) -> Clients:
    """Updates of a few kinds, of very different lengths, sizes and alphas; all real numbers, so that nothing ties."""
    count, width = draw(st.integers(fewest, most)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = rng.normal(size=(draw(st.integers(1, 4)), width))
    noise = draw(st.sampled_from([0.1, 0.5, 2.0]))
    updates = kinds[rng.integers(len(kinds), size=count)] + noise * rng.normal(size=(count, width))
    alphas = rng.uniform(0, draw(st.sampled_from([1.0, 30.0, 300.0])), size=count)
    return Clients(updates * rng.lognormal(size=(count, 1)), rng.uniform(1, 300, size=count), alphas)


# --- section 3.1


@pytest.mark.parametrize(
    ("alpha", "size", "threshold"),
    [
        (1, 185, 0.98920), (100, 185, 0.06501), (1, 950, 0.99790), (10, 950, 0.97900), (100, 950, 0.79501),
        (100, 120, -0.31944),
    ],
)  # fmt: skip
def test_two_equal_clients_merge_above_this_cosine(alpha: float, size: float, threshold: float) -> None:
    assert two_at(threshold + 1e-5, size, alpha).groups() == [[0, 1]]
    assert two_at(threshold - 1e-5, size, alpha).groups() == [[0], [1]]


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.5, 2.9])
def test_the_benefit_of_two_equal_clients_follows_from_their_angle(angle: float) -> None:
    two = two_at(math.cos(angle), size=40, alpha=7)
    assert two.benefit([0], [1]) == pytest.approx(7 / 40 + 2 * math.cos(angle / 2) - 2)


@pytest.mark.parametrize("size", [1, 100, 12345])
def test_orthogonal_equal_clients_merge_above_two_minus_the_root_of_two(size: int) -> None:
    threshold = 2 - math.sqrt(2)
    assert clients(np.eye(2), size, size * (threshold + 1e-6)).groups() == [[0, 1]]
    assert clients(np.eye(2), size, size * (threshold - 1e-6)).groups() == [[0], [1]]


@given(any_clients(fewest=2, most=6), st.floats(-5, 5))
@settings(deadline=None, max_examples=30)
def test_beta_cancels_so_ours_has_none(some: Clients, beta: float) -> None:
    a, b = [0], [*range(1, len(some.sizes))]
    with_beta = plain_hcct.benefit(some.updates, some.sizes, some.alphas, a, b, beta)
    assert some.benefit(a, b) == pytest.approx(with_beta, abs=1e-9)
    assert some.groups() == plain_hcct.partition(some.updates, some.sizes, some.alphas, beta=beta)


def test_an_update_of_no_length_has_cosine_0() -> None:
    three = clients([(1, 0), (0, 0), (1e-13, 0)], sizes=10, alpha=5)
    assert utility(three.gram, three.sizes, three.alphas, [1]) == -0.5
    assert utility(three.gram, three.sizes, three.alphas, [2]) == -0.5
    assert utility(three.gram, three.sizes, three.alphas, [0, 1]) == pytest.approx(-0.5 + 1)
    assert utility(three.gram, three.sizes, three.alphas, [0, 2]) == pytest.approx(-0.5 + 1)
    assert three.groups() == three.plain() == [[0, 1, 2]]


def test_a_mean_of_no_length_has_cosine_0() -> None:
    three = clients([(1e-11,), (1e-11,), (-1.9e-11,)], sizes=10, alpha=0)
    assert utility(three.gram, three.sizes, three.alphas, [0, 1, 2]) == 0
    assert utility(1e4 * three.gram, three.sizes, three.alphas, [0, 1, 2]) == pytest.approx(1)


def test_updates_that_cancel_have_cosine_0_to_their_mean() -> None:
    two = clients([(1, 2), (-1, -2)], sizes=10, alpha=5)
    assert two.benefit([0], [1]) == pytest.approx(-0.5 - 2 * (-0.5 + 1))
    assert two.groups() == [[0], [1]]
    assert two.groups(1) == [[0, 1]]


# --- section 3.2


@pytest.mark.parametrize(
    ("alpha", "first", "second", "groups"),
    [
        (1, 0.080955, -0.827679, [[0, 1], [2]]),
        (10, 0.845955, -0.557679, [[0, 1], [2]]),
        (100, 8.495955, 2.142321, [[0, 1, 2]]),
    ],
)
def test_three_clients_merge_as_traced(alpha: float, first: float, second: float, groups: list[list[int]]) -> None:
    three = clients([(1, 0), (0.9, 0.1), (0, 1)], [10, 40, 50], alpha)
    assert three.benefit([0], [1]) == pytest.approx(first, abs=5e-7)
    assert max(three.benefit([0], [2]), three.benefit([1], [2])) < first
    assert three.benefit([0, 1], [2]) == pytest.approx(second, abs=5e-7)
    assert three.groups() == three.plain() == groups
    assert three.groups(2) == [[0, 1], [2]]


def test_the_utilities_of_the_three_clients_are_as_traced() -> None:
    three = clients([(1, 0), (0.9, 0.1), (0, 1)], [10, 40, 50], 10)
    alone = [utility(three.gram, three.sizes, three.alphas, [row]) for row in range(3)]
    assert alone == pytest.approx([0, 0.75, 0.8])
    members = plain_hcct.utilities(three.updates, three.sizes, three.alphas, [0, 1])
    assert members == pytest.approx([0.796241, 0.799714], abs=5e-7)
    assert members + 10 / 50 == pytest.approx([0.996241, 0.999714], abs=5e-7)
    assert utility(three.gram, three.sizes, three.alphas, [0, 1]) == pytest.approx(members.sum())


def test_nobody_merges_at_a_loss_unlike_in_the_printed_algorithm() -> None:
    three = clients(np.eye(3), 100, 1)
    assert three.groups() == [[0], [1], [2]]
    printed = plain_hcct.partition(three.updates, three.sizes, three.alphas, merge_before_stopping=True)
    assert printed == [[0, 1], [2]]


def test_equal_updates_gain_nothing_where_samples_count_nothing() -> None:
    update = np.random.default_rng(0).normal(size=9)
    alike = clients(np.outer([1, 3, 0.7, 11, 5], update), [7, 30, 19, 11, 3], alpha=0)
    assert alike.groups() == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("small", [0, 1, 2])
def test_a_client_may_gain_by_a_group_though_by_none_of_its_members(small: int) -> None:
    # Two large clients to either side of a small one, and in another plane two that lose a little by each other.
    angles = np.radians([*np.insert([40, -40], small, 0), 0, 25])
    along, across = np.cos(angles), np.sin(angles)
    updates = np.zeros((5, 4))
    updates[:3, 0], updates[:3, 1], updates[3:, 2], updates[3:, 3] = along[:3], across[:3], along[3:], across[3:]
    sizes, alphas = np.array([*np.insert([100.0, 100], small, 1), 100, 100]), np.zeros(5)
    alphas[:3] = np.insert([100, 100], small, 0.1)
    five = Clients(updates, sizes, alphas)
    large = [row for row in range(3) if row != small]
    assert max(five.benefit([small], [row]) for row in large) < five.benefit([3], [4]) < 0
    assert five.groups() == five.plain() == [[0, 1, 2], [3], [4]]


def test_of_equal_benefits_the_smallest_pair_comes_first() -> None:
    assert clients([(1, 0)] * 4, 16, 1).groups(3) == [[0, 1], [2], [3]]
    assert clients([(1, 0)] * 4, 16, 1).groups(2) == [[0, 1, 2], [3]]
    assert clients([(0, 1), (1, 0), (0, 1), (1, 0)], 16, 1).groups(3) == [[0, 2], [1], [3]]
    assert clients([(1, 0), (0, 1), (0, 1), (1, 0)], 16, 1).groups(3) == [[0, 3], [1], [2]]


def test_a_group_that_has_become_as_good_as_a_later_one_comes_first() -> None:
    # Made-up products, exact in binary: once 1 and 2 are together, 0 gains as much by them as by 3, its best so far.
    gram = np.array(
        [[1, 3.1875, -1.1875, 1], [3.1875, 1, 1, 0], [-1.1875, 1, 1, -1.1875], [1, 0, -1.1875, 1]], np.float64
    )
    sizes, alphas = np.array([16, 8, 8, 16]), np.array([50.0, 0, 64, 64])

    def benefit(a: list[int], b: list[int]) -> float:
        return utility(gram, sizes, alphas, a + b) - utility(gram, sizes, alphas, a) - utility(gram, sizes, alphas, b)

    assert benefit([1], [2]) == 4
    assert benefit([0], [1, 2]) == benefit([0], [3]) == 3.5625
    assert partition(gram, sizes, alphas, 2) == [[0, 1, 2], [3]]


@pytest.mark.parametrize("wanted", range(1, 7))
def test_a_forced_number_of_groups_is_met_at_a_loss_or_with_gains_left(wanted: int) -> None:
    apart, alike = clients(np.eye(6), 100, 1), clients(np.ones((6, 1)), 100, 1)
    assert len(apart.groups()) == 6
    assert len(alike.groups()) == 1
    assert len(apart.groups(wanted)) == len(alike.groups(wanted)) == wanted


def test_no_fewer_clients_than_there_are_groups_are_made_up() -> None:
    assert clients(np.eye(2), 10, 1).groups(5) == [[0], [1]]
    assert partition(np.empty((0, 0)), np.empty(0, np.int64), np.empty(0)) == []


def test_greedy_mostly_finds_the_best_partition_but_not_always() -> None:
    found = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        five = Clients(rng.normal(size=(5, 3)), rng.integers(10, 100, 5).astype(float), np.full(5, 20.0))
        best, _ = plain_hcct.best_partition(five.updates, five.sizes, five.alphas)
        reached = five.utility(five.groups())
        assert reached <= best + 1e-9
        found += reached >= best - 1e-9
    assert 160 <= found < 200


# --- equal to the plain definition


@given(any_clients(), st.data())
@settings(deadline=None, max_examples=150)
def test_the_groups_are_those_of_the_plain_algorithm(some: Clients, data: st.DataObject) -> None:
    wanted = data.draw(st.none() | st.integers(1, len(some.sizes)))
    assert some.groups(wanted) == some.plain(wanted)


@pytest.mark.parametrize("alpha", [5, 60])
def test_dropping_dead_groups_on_the_way_changes_nothing(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(6, 5))[rng.integers(6, size=60)] + 0.3 * rng.normal(size=(60, 5))
    many = Clients(updates, rng.uniform(10, 200, 60), np.full(60, float(alpha)))
    whole = many.groups()
    assert len(whole) < 30, "else none are dropped"
    monkeypatch.setattr(greedy_merging, "_FEWEST_TO_COMPACT", 4)
    assert many.groups() == whole == many.plain()


def test_groups_found_in_single_precision_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(5, 8))[rng.integers(5, size=300)] + 0.3 * rng.normal(size=(300, 8))
    many = Clients(updates, rng.uniform(10, 200, 300), np.full(300, 20.0))
    exact = many.utility(many.groups())
    monkeypatch.setattr(greedy_merging, "_MOST_IN_DOUBLES", 299)
    groups = partition(many.gram.astype(np.float32), many.sizes, many.alphas)
    assert many.utility(groups) == pytest.approx(exact, rel=1e-3)


@given(any_clients(), st.data())
@settings(deadline=None, max_examples=50)
def test_the_utility_is_never_below_that_of_singletons_or_of_the_plain_groups(
    some: Clients, data: st.DataObject
) -> None:
    groups = some.groups()
    reached = some.utility(groups)
    assert reached >= some.utility([[row] for row in range(len(some.sizes))]) - 1e-9
    assert reached >= some.utility(some.plain()) - 1e-9
    counted = sum(utility(some.gram, some.sizes, some.alphas, group) for group in groups)
    assert counted == pytest.approx(reached, abs=1e-9)


@given(any_clients(), st.floats(1e-6, 1e6))
@settings(deadline=None, max_examples=50)
def test_a_common_factor_of_all_updates_changes_nothing(some: Clients, factor: float) -> None:
    scaled = Clients(some.updates * factor, some.sizes, some.alphas)
    assert scaled.groups() == some.groups()


@given(any_clients(), st.data())
@settings(deadline=None, max_examples=50)
def test_clients_in_another_order_have_the_same_groups(some: Clients, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(some.sizes))))
    shuffled = Clients(some.updates[order], some.sizes[order], some.alphas[order])
    back = sorted(sorted(order[row] for row in group) for group in shuffled.groups())
    assert back == some.groups()


# --- section 3.10


@given(any_clients(fewest=2))
@settings(deadline=None, max_examples=50)
def test_a_newcomer_joins_the_group_that_gains_most_or_nobody(some: Clients) -> None:
    newcomer = len(some.sizes) - 1
    others = Clients(some.updates[:-1], some.sizes[:-1], some.alphas[:-1]).groups()
    gains = [plain_hcct.benefit(some.updates, some.sizes, some.alphas, group, [newcomer]) for group in others]
    expected = int(np.argmax(gains)) if max(gains) > 0 else None
    assert place(some.gram, some.sizes, some.alphas, others, newcomer) == expected


def test_a_newcomer_to_no_groups_is_alone() -> None:
    assert place(np.ones((1, 1)), np.ones(1, np.int64), np.ones(1), [], 0) is None


def test_a_newcomer_joins_the_first_of_equally_good_groups() -> None:
    four = clients([(0, 1), (1, 0), (1, 0), (1, 0)], 16, 1)
    assert place(four.gram, four.sizes, four.alphas, [[0], [1], [2]], 3) == 1


def test_the_question_is_left_as_it_was() -> None:
    some = clients(np.ones((6, 2)), [1, 2, 3, 4, 5, 6], 3)
    gram, sizes, alphas = some.gram, some.sizes.copy(), some.alphas.copy()
    for array in (gram, sizes, alphas):
        array.flags.writeable = False
    assert len(partition(gram, sizes, alphas)) == 1
    assert place(gram, sizes, alphas, [[0]], 5) == 0
