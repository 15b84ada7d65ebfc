"""Inverse distance aggregation: numbers worked out by hand, and what holds for any models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgsp.means.ida
import fedgsp.tensors.spill
from fedgsp.means.ida import Ida, IdaOptions, distances
from fedgsp.messages import TensorSpec
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.weights import Weights
from tests.support.reference_ida import ida
from tests.support.weights import some_weights

Point = tuple[float, ...]
TIMES = pytest.mark.parametrize("times", ["plain", "samples", "intrac"])
NORMS = pytest.mark.parametrize("distance", ["l1", "l2"])


def model(point: Sequence[float], dtype: str = "float64") -> Weights:
    return Weights.of({"w": np.asarray(point)}, (TensorSpec("w", dtype, (len(point),)),))


def merged(
    points: Sequence[Point],
    times: str = "plain",
    distance: str = "l1",
    samples: Sequence[float] = (),
    accuracies: Sequence[float] = (),
) -> list[float]:
    average = Ida(IdaOptions(times, distance))
    for index, point in enumerate(points):
        count = samples[index] if samples else 1
        average.fold(model(point), count, accuracies[index] if accuracies else 0.0)
    found: list[float] = average.result().arrays["w"].tolist()
    return found


THREE = ((0.0, 0.0), (1.0, 0.0), (4.0, 0.0))
FOUR = ((0.0, 0.0), (1.0, 2.0), (4.0, -2.0), (3.0, 1.0))
#: Of 62 classes, no accuracy of these is below that of a guess.
ACCURACIES = (0.5, 0.8, 0.05)


@pytest.mark.parametrize(
    ("points", "distance", "expected"),
    [
        (THREE, "l1", (5 / 3, 2 / 3, 7 / 3)),
        (THREE, "l2", (5 / 3, 2 / 3, 7 / 3)),
        (FOUR, "l1", (2.25, 2.75, 4.25, 1.75)),
        (FOUR, "l2", (2.01556444, 2.01556444, 3.01039864, 1.25)),
        (((0.0, 0.0), (2.0, 2.0), (4.0, 4.0)), "l1", (4, 0, 4)),
        (((0.0, 1.0), (2.0, 5.0)), "l1", (3, 3)),
        (((1.0, 1.0), (1.0, 1.0)), "l1", (0, 0)),
        (FOUR, "none", (0, 0, 0, 0)),
    ],
)
def test_distances_from_the_mean_are_those_worked_out_by_hand(
    points: Sequence[Point], distance: str, expected: Point
) -> None:
    assert distances([model(point) for point in points], distance) == pytest.approx(expected, abs=5.1e-9)


@pytest.mark.parametrize(
    ("points", "times", "distance", "expected"),
    [
        (THREE, "plain", "l1", (1.27118644, 0)),
        (THREE, "samples", "l1", (1.9273743, 0)),
        (THREE, "intrac", "l1", (3.1048758, 0)),
        (THREE, "intrac", "none", (3.49462366, 0)),
        (FOUR, "plain", "l1", (1.86963835, 0.5128259)),
        (FOUR, "plain", "l2", (1.98867807, 0.53091804)),
        (((0.0, 0.0), (2.0, 2.0), (4.0, 4.0)), "plain", "l1", (2, 2)),
        (((0.0, 1.0), (2.0, 5.0)), "plain", "l1", (1, 3)),
        (((1.0, 1.0), (1.0, 1.0)), "plain", "l1", (1, 1)),
    ],
)
def test_means_are_those_worked_out_by_hand(
    points: Sequence[Point], times: str, distance: str, expected: Point
) -> None:
    found = merged(points, times, distance, (1, 3, 6, 1)[: len(points)], (*ACCURACIES, 1.0)[: len(points)])
    assert found == pytest.approx(expected, abs=5.1e-9)


@pytest.mark.parametrize(
    ("points", "times", "distance", "expected"),
    [
        (THREE, "plain", "l1", (0.23728814, 0.59322034, 0.16949153)),
        (THREE, "samples", "l1", (0.07821229, 0.58659218, 0.33519553)),
        (THREE, "intrac", "l1", (0.10303588, 0.16099356, 0.73597056)),
        (THREE, "intrac", "none", (0.08602151, 0.05376344, 0.86021505)),
        (FOUR, "plain", "l1", (0.27523129, 0.22518923, 0.14571068, 0.35386880)),
        (FOUR, "plain", "l2", (0.23353652, 0.23353652, 0.15636065, 0.37656632)),
        (((0.0, 0.0), (2.0, 2.0), (4.0, 4.0)), "plain", "l1", (0, 1, 0)),
        (((0.0, 1.0), (2.0, 5.0)), "plain", "l1", (0.5, 0.5)),
        (((1.0, 1.0), (1.0, 1.0)), "plain", "l1", (0.5, 0.5)),
    ],
)
def test_models_weigh_what_was_worked_out_by_hand(
    monkeypatch: pytest.MonkeyPatch, points: Sequence[Point], times: str, distance: str, expected: Point
) -> None:
    """The weights are read from a mean of the columns of a unit matrix, given the distances of the models."""
    found = distances([model(point) for point in points], distance)
    monkeypatch.setattr(fedgsp.means.ida, "distances", lambda *_: found)
    unit = [tuple(row) for row in np.eye(len(points)).tolist()]
    weights = merged(unit, times, distance, (1, 3, 6, 1)[: len(points)], (*ACCURACIES, 1.0)[: len(points)])
    assert weights == pytest.approx(expected, abs=5.1e-9)
    assert sum(weights) == pytest.approx(1, abs=1e-12)


_models = st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=7)


@NORMS
@given(points=_models)
def test_the_mean_lies_among_the_models_whatever_their_order(distance: str, points: list[Point]) -> None:
    found = np.array(merged(points, "plain", distance))
    among = np.array(points)
    assert (found >= among.min(axis=0) - 1e-9).all()
    assert (found <= among.max(axis=0) + 1e-9).all()
    if min(distances([model(point) for point in points], distance)) > 1e-3:
        assert found == pytest.approx(np.array(merged(points[::-1], "plain", distance)), abs=1e-6)


@NORMS
@given(points=st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=2))
def test_two_models_always_count_alike(distance: str, points: list[Point]) -> None:
    assert merged(points, "plain", distance) == pytest.approx(np.mean(points, axis=0), abs=1e-6)


@TIMES
def test_the_mean_of_one_model_is_that_model(times: str) -> None:
    average, only = Ida(IdaOptions(times)), some_weights(1)
    average.fold(only, 3, 0.5)
    assert average.result().digest == only.digest


def test_without_distances_and_with_samples_it_is_the_weighted_mean() -> None:
    assert merged(THREE, "samples", "none", (1, 3, 6)) == pytest.approx([2.7, 0])


SPECS = (
    TensorSpec("w", "float32", (300, 211)),
    TensorSpec("running", "float32", (5,), trainable=False),
    TensorSpec("batches", "int64", (), trainable=False),
    TensorSpec("h", "float16", (7,)),
    TensorSpec("b", "bfloat16", (7,)),
    TensorSpec("none", "float32", (0,)),
)


def states(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(count)
    return [
        {spec.name: (rng.standard_normal(spec.shape) * 3).astype(DTYPES[spec.dtype]) for spec in SPECS}
        for _ in range(count)
    ]


@TIMES
@NORMS
@pytest.mark.parametrize("in_file", [False, True])
def test_large_models_have_the_bits_of_whole_models(
    times: str, distance: str, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distances do not count buffers, which are averaged by samples. Here a tensor is one block."""
    monkeypatch.setattr(fedgsp.tensors.spill, "SPILLED_BYTES", 1 << 10 if in_file else 1 << 40)
    monkeypatch.setattr(fedgsp.means.ida, "BLOCK", 1 << 20)
    found, samples, accuracies = states(5), (4, 1, 9, 2, 2), (0.5, 0.25, 1.0, 0.75, 0.1)
    average = Ida(IdaOptions(times, distance))
    digests = []
    for state, count, accuracy in zip(found, samples, accuracies, strict=True):
        weights = Weights.of(state, SPECS)
        digests.append((weights, weights.copy().digest))
        average.fold(weights, count, accuracy)
    factors = {"plain": (1.0,) * 5, "samples": samples, "intrac": tuple(1 / one for one in accuracies)}[times]
    expected = ida(found, samples, {"w", "h", "b", "none"}, factors, distance)
    result = average.result()
    for name, array in result.arrays.items():
        assert array.tobytes() == expected[name].tobytes(), name
    assert all(weights.copy().digest == digest for weights, digest in digests)


def test_blocks_change_only_the_last_bits_of_a_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Weights.of(state, SPECS) for state in states(4)]
    whole = distances(models, "l1")
    monkeypatch.setattr(fedgsp.means.ida, "BLOCK", 1000)
    assert distances(models, "l1") == pytest.approx(whole, rel=1e-12)


def test_what_cannot_be_folded_is_refused() -> None:
    average = Ida(IdaOptions())
    with pytest.raises(ValueError, match="no model was folded"):
        average.result()
    with pytest.raises(ValueError, match="cannot weigh 0 samples"):
        average.fold(some_weights(0), 0)
    average.fold(some_weights(0))
    with pytest.raises(ValueError, match="the models differ"):
        average.fold(model((1.0,)))


@pytest.mark.parametrize("accuracy", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_intrac_refuses_what_is_no_accuracy(accuracy: float) -> None:
    average = Ida(IdaOptions("intrac"))
    with pytest.raises(ValueError, match="its training accuracy is"):
        average.fold(some_weights(0), 1, accuracy)
    assert average.empty
