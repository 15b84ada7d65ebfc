"""Client discriminators between exchanges: which go on, from what, and the distances that are read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.discriminators import UNKNOWN
from fedgsp.messages import Discriminated, TensorSpec
from fedgsp.tensors.weights import Weights
from group_manager.discrimination import Networks, PairedNetworks, SharedNetwork, networks
from group_manager.distance_estimate import distances
from tests.support.scripted_networks import numbers, plan, stack

NOBODY: set[int] = set()


def judged(*correct: int, samples: int = 100) -> Discriminated:
    return Discriminated(None, correct, samples)


def paired(*clients: int, **changes: Any) -> Networks:
    return networks(clients or (0, 1, 2), plan(**changes))


def shared(*clients: int, **changes: object) -> Networks:
    return networks(clients or (0, 1, 2), plan(shared=True, **changes))


def start_of(found: Networks, client: int) -> list[float]:
    start = found.start(client)
    assert start is not None
    return numbers(start)


def matrix_of(found: Networks) -> np.ndarray:
    """The distances by the largest judgements."""
    return distances([found], 10, "largest")[0]


def both(found: Networks, first: int, second: int, samples: int = 100) -> None:
    """A judgement of the only pair."""
    found.advance({0: judged(first, samples=samples), 1: judged(second, samples=samples)}, {}, NOBODY)


def test_settings_say_which_networks_there_are() -> None:
    assert isinstance(paired(), PairedNetworks)
    assert isinstance(shared(), SharedNetwork)
    assert not paired().shared
    assert shared().shared


# --- pairs


def test_every_pair_has_a_network_and_newcomers_only_theirs() -> None:
    assert paired(4, 1, 7).pairs == [(4, 1), (4, 7), (1, 7)]
    some = paired(0, 1, 2, 3, newcomers=(1, 3))
    assert some.pairs == [(0, 1), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert some.left == 5
    assert [some.others(client) for client in range(4)] == [(1, 3), (0, 2, 3), (1, 3), (0, 1, 2)]


def test_a_client_that_is_no_newcomers_partner_has_nothing_to_do() -> None:
    found = paired(0, 1, newcomers=(5,))
    assert (found.left, found.others(0)) == (0, ())
    assert matrix_of(found).tolist() == [[0, UNKNOWN], [UNKNOWN, 0]]


def test_networks_are_fresh_at_first() -> None:
    for found in (paired(), shared()):
        assert [found.start(client) for client in range(3)] == [None] * 3


def test_both_sides_of_a_pair_go_on_from_the_mean_of_what_they_trained() -> None:
    found = paired(4, 1, 7)
    found.advance({}, {4: stack(1, 2), 1: stack(3, 4), 7: stack(6, 8)}, NOBODY)
    assert {client: start_of(found, client) for client in (4, 1, 7)} == {4: [2, 4], 1: [2, 6], 7: [4, 6]}


def test_what_a_client_goes_on_from_has_a_digest_of_its_own() -> None:
    """That of what it sent was computed when it came."""
    found, sent = paired(0, 1), {0: stack(1), 1: stack(3)}
    before = {weights.digest for weights in sent.values()}
    found.advance({}, sent, NOBODY)
    start = found.start(0)
    assert start is not None
    assert start.digest == stack(2).digest
    assert start.digest not in before


def test_a_pair_that_stopped_drops_out_of_both_stacks_and_no_other() -> None:
    found = paired(patience=1)
    for right in (judged(60, 60), judged(60, 70)):
        # (0, 1) does not improve the second time, (0, 2) and (1, 2) do
        trained = {0: stack(1, 2), 1: stack(3, 4), 2: stack(6, 8)}
        found.advance({0: right, 1: right, 2: judged(right.correct[1], 70)}, trained, NOBODY)
    assert (found.left, len(found.pairs)) == (2, 3)
    assert [found.others(client) for client in range(3)] == [(2,), (2,), (0, 1)]
    assert [start_of(found, client) for client in range(3)] == [[4], [6], [4, 6]]
    start = found.start(0)
    assert start is not None
    assert [spec.shape for spec in start.tensors] == [(1, 4), (1, 2)]


# --- what clients may send


GOOD = stack(1, 2)


def like(dtype: str = "float32", names: str = "wb", rows: int = 2, width: int = 4) -> Weights:
    shapes = {names[0]: (rows, width), names[1]: (rows, 2)}
    specs = tuple(TensorSpec(name, dtype, shape) for name, shape in shapes.items())
    return Weights.of({name: np.ones(shape) for name, shape in shapes.items()}, specs)


BAD = {
    "too many rows": stack(1, 2, 3),
    "too few rows": stack(1),
    "no rows": stack(),
    "another dtype": like("float64"),
    "whole numbers": like("int32"),
    "rows that differ": Weights.of(
        {"w": np.ones((2, 4)), "b": np.ones((3, 2))},
        (TensorSpec("w", "float32", (2, 4)), TensorSpec("b", "float32", (3, 2))),
    ),
    "a number without rows": Weights.of(
        {"w": np.ones((2, 4)), "b": np.ones(())},
        (TensorSpec("w", "float32", (2, 4)), TensorSpec("b", "float32", ())),
    ),
    "nothing": Weights.of({}, ()),
    "out of bounds": Weights.of({"w": np.full((2, 4), 2e6)}, (TensorSpec("w", "float32", (2, 4)),)),
}
#: Networks that most clients' do not go with.
STRANGE = {
    "other shapes": like(width=5),
    "other names": like(names="xb"),
    "names exchanged": like(names="bw"),
    "a tensor too few": Weights.of({"w": np.ones((2, 4))}, (TensorSpec("w", "float32", (2, 4)),)),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_who_has_other_networks_than_most_is_a_stranger_even_if_it_is_first(strange: str) -> None:
    found = paired(0, 1, 2)
    assert found.fits(0, STRANGE[strange])
    assert found.strangers({0: STRANGE[strange], 1: like(), 2: like()}) == {0}
    # what was usual in the first exchange stays usual
    assert found.strangers({0: STRANGE[strange], 1: STRANGE[strange], 2: like()}) == {0, 1}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_stack_of_everybodys_networks_does_not_fit(bad: str) -> None:
    found = paired()
    assert found.fits(0, GOOD)
    assert not found.fits(1, BAD[bad])
    assert found.fits(2, GOOD)


@pytest.mark.parametrize(
    "bad", ["too many rows", "too few rows", "another dtype", "whole numbers", "rows that differ"]
)
def test_a_stack_with_impossible_weights_does_not_fit_even_in_the_first_exchange(bad: str) -> None:
    assert not paired().fits(0, BAD[bad])


def test_a_shared_network_is_one() -> None:
    found = shared()
    assert found.fits(0, stack(1))
    assert not found.fits(1, stack(1, 2))


# --- distances


def test_nothing_is_known_before_both_have_judged() -> None:
    for found in (paired(), shared()):
        assert matrix_of(found).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("first", "second", "distance"), [(100, 100, 1.0), (90, 80, 0.7), (50, 50, 0), (30, 40, -0.3)]
)
def test_the_distance_is_the_sum_of_both_accuracies_minus_1(first: int, second: int, distance: float) -> None:
    found = paired(0, 1)
    both(found, first, second)
    assert matrix_of(found)[0, 1] == pytest.approx(distance)


def test_clients_count_alike_however_many_samples_they_judge_on() -> None:
    found = paired(0, 1)
    found.advance({0: judged(9, samples=10), 1: judged(600, samples=1000)}, {}, NOBODY)
    assert matrix_of(found)[0, 1] == pytest.approx(0.5)


def test_the_matrix_has_a_row_per_client_in_their_order_and_is_symmetric() -> None:
    found = paired(4, 1, 7)
    found.advance({4: judged(60, 70), 1: judged(60, 80), 7: judged(70, 80)}, {}, NOBODY)
    assert matrix_of(found) == pytest.approx(np.array([[0, 0.2, 0.4], [0.2, 0, 0.6], [0.4, 0.6, 0]]))


def test_a_client_without_a_validation_part_is_not_compared() -> None:
    found = paired()
    found.advance({0: judged(60, 60), 1: judged(60, 60), 2: judged(0, 0, samples=0)}, {}, NOBODY)
    assert matrix_of(found) == pytest.approx(np.array([[0, 0.2, 1], [0.2, 0, 1], [1, 1, 0]]))
    assert found.left == 1
    assert found.others(2) == ()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=15),
    st.integers(1, 4),
)
def test_a_pair_has_its_best_judgement_and_stops_after_so_many_without_a_better(
    told: list[tuple[int, int]], patience: int
) -> None:
    found, best, without = paired(0, 1, patience=patience), -2.0, 0
    for first, second in told:
        assert found.left == 1
        both(found, first, second, samples=20)
        distance = first / 20 + second / 20 - 1
        best, without = (distance, 0) if distance > best else (best, without + 1)
        assert matrix_of(found)[0, 1] == pytest.approx(best)
        assert found.left == (without < patience)
        if without >= patience:
            break


def test_a_shared_network_is_read_at_one_judgement_for_all_the_best_in_sum() -> None:
    found = shared()
    sums = [
        {0: judged(0, 60, 60), 1: judged(60, 0, 60), 2: judged(60, 60, 0)},
        {0: judged(0, 60, 90), 1: judged(50, 0, 80), 2: judged(90, 80, 0)},
        {0: judged(0, 99, 60), 1: judged(99, 0, 60), 2: judged(60, 60, 0)},
    ]
    for told in sums:
        found.advance(told, {}, NOBODY)
    # the second, though the first pair was told apart better in both of the others
    assert matrix_of(found) == pytest.approx(np.array([[0, 0.1, 0.8], [0.1, 0, 0.6], [0.8, 0.6, 0]]))


def test_a_shared_network_stops_for_all_at_once() -> None:
    found = shared(patience=2)
    for left in (3, 3, 0):
        found.advance({0: judged(0, 60, 60), 1: judged(60, 0, 60), 2: judged(60, 60, 0)}, {}, NOBODY)
        assert found.left == left
    assert [found.others(client) for client in range(3)] == [()] * 3


def test_a_better_sum_makes_a_shared_network_patient_again() -> None:
    found = shared(0, 1, patience=2)
    for right, left in [(60, 1), (55, 1), (61, 1), (61, 1), (61, 0)]:
        found.advance({0: judged(0, right), 1: judged(right, 0)}, {}, NOBODY)
        assert found.left == left
    assert matrix_of(found)[0, 1] == pytest.approx(0.22)


def test_a_shared_network_is_the_plain_mean_and_the_same_for_all() -> None:
    found = shared()
    found.advance({}, {0: stack(1), 1: stack(2), 2: stack(6)}, NOBODY)
    assert [start_of(found, client) for client in range(3)] == [[3]] * 3
    assert found.start(0) is found.start(2)


def test_judging_alone_leaves_networks_as_they_are() -> None:
    for found, trained, told in [
        (paired(0, 1), {0: stack(1), 1: stack(3)}, judged(60)),
        (shared(0, 1), {0: stack(1), 1: stack(3)}, judged(60, 60)),
    ]:
        found.advance({}, trained, NOBODY)
        before = matrix_of(found)
        found.advance({0: told, 1: told}, {}, NOBODY)
        assert found.left == 1
        assert not np.array_equal(matrix_of(found), before)


# --- failures


def told_of(clients: Mapping[int, object], right: int, count: int) -> dict[int, Discriminated]:
    return {client: judged(*[right] * count) for client in clients}


def test_pairs_of_a_failed_client_are_not_known_though_they_were_judged_before() -> None:
    found = paired()
    everyone = {0: stack(1, 2), 1: stack(3, 4), 2: stack(6, 8)}
    found.advance(told_of(everyone, 60, 2), everyone, NOBODY)
    rest = {client: everyone[client] for client in (0, 2)}
    found.advance(told_of(rest, 55, 2), rest, {1})
    assert matrix_of(found) == pytest.approx(np.array([[0, 1, 0.2], [1, 0, 1], [0.2, 1, 0]]))
    assert [found.others(client) for client in range(3)] == [(2,), (), (0,)]
    assert found.left == 1


def test_the_others_of_a_failed_client_go_on_with_the_networks_that_are_left() -> None:
    found = paired()
    found.advance({}, {0: stack(1, 2), 2: stack(6, 8)}, {1})
    assert [start_of(found, client) for client in (0, 2)] == [[4], [4]]
    found.advance({}, {0: stack(1), 2: stack(2)}, NOBODY)
    assert [start_of(found, client) for client in (0, 2)] == [[1.5], [1.5]]


def test_a_pair_that_stopped_before_its_client_failed_is_known() -> None:
    found = paired(patience=1)
    for right in (judged(60, 60), judged(60, 70)):
        found.advance({0: right, 1: right, 2: judged(right.correct[1], right.correct[1])}, {}, NOBODY)
    assert [found.others(client) for client in range(3)] == [(2,), (2,), (0, 1)]
    found.advance({}, {1: stack(4), 2: stack(6, 8)}, {0})
    assert matrix_of(found) == pytest.approx(np.array([[0, 0.2, 1], [0.2, 0, 0.4], [1, 0.4, 0]]))


@pytest.mark.parametrize("kind", [paired, shared])
def test_when_all_have_failed_nothing_is_left_and_nothing_known(kind: type[Networks]) -> None:
    found = kind()  # type: ignore[call-arg]
    count = 3 if found.shared else 2
    trained = {client: stack(1) if found.shared else stack(1, 2) for client in range(3)}
    found.advance(told_of(trained, 60, count), trained, NOBODY)
    found.advance({}, {}, {0, 1, 2})
    assert found.left == 0
    assert matrix_of(found).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_outputs_of_a_shared_network_keep_their_places_when_a_client_fails() -> None:
    found = shared()
    found.advance({}, {0: stack(2), 2: stack(6)}, {1})
    assert [found.others(client) for client in range(3)] == [(0, 1, 2), (), (0, 1, 2)]
    assert found.left == 1
    assert start_of(found, 0) == [4]
    found.advance({0: judged(0, 99, 70), 2: judged(80, 99, 0)}, {}, NOBODY)
    assert matrix_of(found) == pytest.approx(np.array([[0, 1, 0.5], [1, 0, 1], [0.5, 1, 0]]))


def test_one_client_alone_has_no_shared_network_to_train() -> None:
    found = shared()
    found.advance({}, {0: stack(2)}, {1, 2})
    assert (found.left, found.others(0)) == (0, ())


@pytest.mark.parametrize("kind", [paired, shared])
def test_one_client_or_none_has_no_pairs(kind: type[Networks]) -> None:
    alone = kind(5)  # type: ignore[arg-type,call-arg]
    assert (alone.left, alone.others(5)) == (0, ())
    assert matrix_of(alone).tolist() == [[0]]
    nobody = networks((), plan(shared=kind is shared))
    assert (nobody.left, matrix_of(nobody).shape) == (0, (0, 0))
