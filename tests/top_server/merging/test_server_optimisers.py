"""FedAdagrad, FedAdam and FedYogi: numbers worked out by hand, what holds for any numbers, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedgsp.tensors.spill
from fedgsp.errors import ConfigError, RunError
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights
from tests.support.reference_optimisers import PlainOptimiser
from top_server.evidence import Evidence
from top_server.merging import MERGES, MergeSettings
from top_server.merging.base import GroupModel
from top_server.merging.server_optimisers import ServerOptimiser
from top_server.models import GLOBAL, Made

RULES = ("fedadagrad", "fedadam", "fedyogi")
EVERY = pytest.mark.parametrize("rule", RULES)
EVIDENCE = Evidence((0, 1))
Values = Sequence[float] | NDArray[Any]


def tensors(size: int, dtype: str = "float64") -> tuple[TensorSpec, ...]:
    return (TensorSpec("w", dtype, (size,)),)


def made(values: Values, dtype: str = "float64") -> Weights:
    return Weights.of({"w": np.asarray(values)}, tensors(len(values), dtype))


def merge(rule: str, **options: object) -> ServerOptimiser:
    given = {name: str(value) for name, value in options.items()}
    found = MERGES[rule].load()(MergeSettings("run", 0, False, MERGES[rule].read(given)))
    assert isinstance(found, ServerOptimiser)
    return found


def played(optimiser: ServerOptimiser, before: Weights, *groups: tuple[Weights, int], number: int = 1) -> Weights:
    """The global model after a round."""
    optimiser.begin(number, EVIDENCE, {GLOBAL: before})
    for index, (weights, samples) in enumerate(groups):
        optimiser.fold(number, GroupModel(index, (index,), frozenset({index}), samples, weights, {}))
    changes = optimiser.finish(number)
    if not changes:
        return before
    found = changes[GLOBAL]
    assert isinstance(found, Made)
    return found.weights


def moved(optimiser: ServerOptimiser, before: Weights, change: Values, number: int = 1) -> Weights:
    """After a round of one group whose result is this far from the global model."""
    return played(optimiser, before, (made(values(before) + np.asarray(change)), 1), number=number)


def values(weights: Weights) -> NDArray[Any]:
    return weights.arrays["w"].astype(np.float64)


def moment(optimiser: ServerOptimiser, which: str) -> NDArray[Any]:
    return optimiser.state()[1][f"{which} w"].astype(np.float64)


@pytest.mark.parametrize(
    ("rule", "beta1", "first", "second"),
    [
        ("fedadagrad", 0, 0.009900499987500625, 0.005468185150640411),
        ("fedadagrad", 0.9, 0.000990049998750062, 0.001344635185698879),
        ("fedadam", 0.9, 0.009050283118522205, 0.012334503698121953),
        ("fedyogi", 0.9, 0.009049875621120886, 0.012321866712423869),
    ],
)
def test_a_number_moves_as_worked_out_by_hand(rule: str, beta1: float, first: float, second: float) -> None:
    optimiser = merge(rule, eta=0.01, tau=1e-3, beta1=beta1)
    one = moved(optimiser, made([0.0]), [0.1])
    assert values(one) == pytest.approx([first], rel=1e-12)
    assert values(moved(optimiser, one, [-0.05], 2)) == pytest.approx([second], rel=1e-12)


CHANGES = ((0.1, -0.02, 0, 0.0005), (-0.05, 0.04, 0.002, 0.0005), (0.2, 0, -0.03, 0.0005))
FOUR = {
    "fedadagrad": (
        ((1.0001e-2, 4.01e-4, 1e-6, 1.25e-6), (1.0099005, -1.00951249, 0, 0.50236068)),
        ((1.2501e-2, 2.001e-3, 5e-6, 1.5e-6), (1.00546819, -1.00076598, 0.00618034, 0.50460813)),
        ((5.2501e-2, 2.001e-3, 9.05e-4, 1.75e-6), (1.01415889, -1.00076598, -0.00347117, 0.50676063)),
    ),
    "fedadam": (
        ((1.0099e-4, 4.99e-6, 9.9e-7, 9.925e-7), (1.00905028, -1.00618462, 0, 0.50025047)),
        ((1.249801e-4, 2.09401e-5, 1.0201e-6, 9.85075e-7), (1.0123345, -1.00223916, 0.00099502, 0.50072726)),
        (
            (5.23730299e-4, 2.07306990e-5, 1.0009899e-5, 9.7772425e-7),
            (1.02221512, -0.99867358, -0.00577757, 0.50140857),
        ),
    ),
    "fedyogi": (
        ((1.01e-4, 5e-6, 1e-6, 9.975e-7), (1.00904988, -1.00618034, 0, 0.50025016)),
        ((1.26e-4, 2.1e-5, 1.04e-6, 9.95e-7), (1.01232187, -1.00223951, 0.0009902, 0.50072575)),
        ((5.26e-4, 2.1e-5, 1.004e-5, 9.925e-7), (1.02218203, -0.99869276, -0.00577467, 0.50140453)),
    ),
}


@EVERY
def test_four_numbers_move_as_worked_out_by_hand(rule: str) -> None:
    optimiser = merge(rule, eta=0.01)  # the other options have the values of the example
    weights = made([1.0, -1.0, 0.0, 0.5])
    for number, (change, (v, w)) in enumerate(zip(CHANGES, FOUR[rule], strict=True), 1):
        weights = moved(optimiser, weights, change, number)
        assert moment(optimiser, "v") == pytest.approx(v, rel=1e-7)
        assert values(weights) == pytest.approx(w, abs=5.1e-9)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("fedadagrad", 1.0997371883650515), ("fedadam", 1.097403369496092), ("fedyogi", 1.0974030410986748)],
)
def test_groups_count_by_their_samples_if_asked(rule: str, expected: float) -> None:
    found = played(merge(rule, eta=0.1, weighted="true"), made([1.0]), (made([0.81]), 1), (made([1.57]), 3))
    assert values(found) == pytest.approx([expected], rel=1e-12)


@EVERY
def test_groups_count_alike_by_default(rule: str) -> None:
    two = played(merge(rule), made([1.0]), (made([0.81]), 1), (made([1.57]), 3))
    assert np.array_equal(values(two), values(played(merge(rule), made([1.0]), (made([1.19]), 1))))


def test_a_huge_tau_gives_federated_averaging() -> None:
    optimiser = merge("fedadagrad", tau=1e9, eta=2e9)
    assert values(moved(optimiser, made([1.0]), [0.38])) == pytest.approx([1.38], rel=1e-12)


@EVERY
def test_no_change_of_a_number_that_never_changed_leaves_it(rule: str) -> None:
    found = moved(merge(rule), made([1.25, 3.0]), [0.0, 1.0])
    assert values(found)[0] == 1.25
    assert values(found)[1] > 3.0


_changes = st.lists(st.floats(-2, 2), min_size=1, max_size=6)


@EVERY
@given(changes=_changes)
def test_opposite_changes_move_the_model_oppositely(rule: str, changes: list[float]) -> None:
    there, back = merge(rule), merge(rule)
    one = other = made([0.0])
    for number, change in enumerate(changes, 1):
        one, other = moved(there, one, [change], number), moved(back, other, [-change], number)
        assert values(one) == -values(other)


@given(changes=_changes)
def test_the_squares_of_adagrad_never_fall(changes: list[float]) -> None:
    optimiser, weights, before = merge("fedadagrad"), made([0.0]), 0.0
    for number, change in enumerate([1.0, *changes], 1):
        weights = moved(optimiser, weights, [change], number)
        assert moment(optimiser, "v")[0] >= before
        before = moment(optimiser, "v")[0]


@EVERY
def test_a_round_in_which_nobody_with_a_weight_trained_changes_nothing(rule: str) -> None:
    """The group then hands in the model that it started from; m would move it."""
    optimiser = merge(rule)
    weights = moved(optimiser, made([1.0]), [0.5])
    saved, kept = optimiser.state()
    before = {name: array.copy() for name, array in kept.items()}
    assert played(optimiser, weights, (weights.copy(), 3), number=2) is weights
    assert optimiser.state()[0] == saved
    for name, array in optimiser.state()[1].items():
        assert np.array_equal(array, before[name])
    assert values(moved(optimiser, weights, [0.1], 3)) != values(weights)


@EVERY
def test_buffers_become_the_mean(rule: str) -> None:
    specs = (
        TensorSpec("w", "float32", (2,)),
        TensorSpec("running", "float32", (2,), trainable=False),
        TensorSpec("batches", "int64", (), trainable=False),
    )

    def model(w: float, running: float, batches: int) -> Weights:
        return Weights.of({"w": np.full(2, w), "running": np.full(2, running), "batches": np.array(batches)}, specs)

    optimiser = merge(rule)
    found = played(optimiser, model(0, 1, 1), (model(1, 3, 7), 1), (model(3, 5, 9), 1))
    assert found.arrays["running"].tolist() == [4.0, 4.0]
    assert found.arrays["batches"] == 7  # an integer is that of the first group
    assert optimiser.state()[1].keys() == {"m w", "v w"}
    assert 0 < found.arrays["w"][0] < 1


def plain(rule: str, options: Mapping[str, float]) -> PlainOptimiser:
    b1 = options.get("beta1", 0.0 if rule == "fedadagrad" else 0.9)
    return PlainOptimiser(rule, ["w"], options["eta"], b1=b1)


@EVERY
@pytest.mark.parametrize("in_file", [False, True])
def test_large_models_have_the_bits_of_whole_arrays(rule: str, in_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed block by block; m and v of a large model are in files."""
    monkeypatch.setattr(fedgsp.tensors.spill, "SPILLED_BYTES", 1 << 10 if in_file else 1 << 40)
    rng = np.random.default_rng(0)
    size, options = 100_003, {"eta": 0.02}
    optimiser, oracle = merge(rule, **options), plain(rule, options)
    weights = made(rng.normal(size=size), "float32").at_rest()
    expected = {"w": weights.arrays["w"].copy()}
    for number in range(1, 4):
        results = [made(values(weights) + rng.normal(size=size) * 0.01, "float32").at_rest() for _ in range(3)]
        weights = played(optimiser, weights, *((one, 1) for one in results), number=number)
        expected = oracle(expected, [{"w": one.arrays["w"].copy()} for one in results])
        assert weights.arrays["w"].tobytes() == expected["w"].tobytes()
    assert moment(optimiser, "v").tobytes() == oracle.v["w"].tobytes()


@EVERY
def test_what_is_kept_survives_bit_for_bit(rule: str) -> None:
    rng = np.random.default_rng(1)
    cut, whole = merge(rule), merge(rule)
    one = other = made(rng.normal(size=50), "float32")
    for number in range(1, 5):
        change = rng.normal(size=50)
        one, other = moved(whole, one, change, number), moved(cut, other, change, number)
        assert one.digest == other.digest
        saved, kept = cut.state()
        assert all(array.dtype == np.float64 for array in kept.values())
        copies = {name: array.copy() for name, array in kept.items()}
        cut = merge(rule)
        cut.restore(json.loads(json.dumps(saved)), copies)


def test_what_is_damaged_is_not_restored() -> None:
    optimiser = merge("fedyogi")
    with pytest.raises(KeyError):
        optimiser.restore({"parameters": ["w"]}, {"m w": np.zeros(2)})
    with pytest.raises(ValueError, match="float32"):
        optimiser.restore({"parameters": ["w"]}, {"m w": np.zeros(2), "v w": np.zeros(2, np.float32)})


def test_a_model_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(RunError, match="the global model diverged") as error:
        played(merge("fedadam", eta=1e300), made([0.0], "float32"), (made([1.0], "float32"), 1))
    assert "--merge-option eta" in error.value.remedy


@EVERY
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("eta", "0"),
        ("eta", "-1"),
        ("eta", "inf"),
        ("tau", "0"),
        ("beta1", "1"),
        ("beta1", "-0.1"),
        ("weighted", "1.5"),
    ],
)
def test_options_without_a_meaning_are_refused(rule: str, option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"merge {rule}: option {option} is '{text}'"):
        MERGES[rule].read({option: text})


def test_adagrad_has_no_share_of_squares() -> None:
    with pytest.raises(ConfigError, match="merge fedadagrad has no option 'beta2'"):
        MERGES["fedadagrad"].read({"beta2": "0.9"})
    for rule in ("fedadam", "fedyogi"):
        with pytest.raises(ConfigError, match="beta2"):
            MERGES[rule].read({"beta2": "1"})
