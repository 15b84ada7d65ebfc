"""HCCT-E's choice of a layer: the three readings of eq. 19."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.errors import TaskError
from fedgsp.messages import TensorSpec
from top_server.reveals.layer_scores import READINGS, choose, layers, scores

#: Two layers without bias, and updates of three clients that agree in the first and differ in the second.
TWO = (TensorSpec("one.weight", "float32", (2, 2)), TensorSpec("two.weight", "float32", (1, 2)))
UPDATES = np.array([[1, 1, 1, 1, 0.1, 0], [1.1, 0.9, 1, 1, -0.1, 0.05], [0.9, 1.1, 1, 1, 0.02, -0.1]])
NET = (
    TensorSpec("conv.weight", "float32", (2, 1, 3, 3)),
    TensorSpec("conv.bias", "float32", (2,)),
    TensorSpec("conv.counter", "int64", (), trainable=False),
    TensorSpec("norm.weight", "float32", (2,)),
    TensorSpec("norm.bias", "float32", (2,)),
    TensorSpec("frozen.weight", "float32", (5, 5), trainable=False),
    TensorSpec("body.dense.weight", "float32", (3, 2)),
    TensorSpec("head.weight", "float32", (2, 3)),
    TensorSpec("head.bias", "float32", (2,)),
    TensorSpec("norm.running_mean", "float32", (2,), trainable=False),
)


class Blocks:
    """Reads like a spool, `width` columns at a time."""

    def __init__(self, updates: np.ndarray, width: int) -> None:
        self.updates, self.width = updates, width

    def __call__(self, part: slice) -> Iterator[np.ndarray]:
        for start in range(part.start, part.stop, self.width):
            yield self.updates[:, start : min(start + self.width, part.stop)]


@pytest.mark.parametrize("width", [1, 3, 100])
@pytest.mark.parametrize(
    ("reading", "expected", "chosen"),
    [
        ("robust", (0.003333, 33.034483), "two"),
        ("release", (0.003333, -1.091667), "one"),
        ("magnitude", (0.003333, 0.456190), "two"),
    ],
)
def test_the_readings_of_the_specification(
    width: int, reading: str, expected: tuple[float, float], chosen: str
) -> None:
    found = scores(reading, TWO, Blocks(UPDATES, width))
    assert list(found) == ["one", "two"]
    assert tuple(found.values()) == pytest.approx(expected, abs=5e-7)
    assert choose(found) == chosen


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
def test_the_readings_are_their_plain_formulas(clients: int, width: int, seed: int) -> None:
    updates = (np.random.default_rng(seed).standard_normal((clients, 38)) + 0.3).astype(np.float32)
    parts = {
        "conv": (slice(0, 18), slice(18, 20)),
        "body.dense": (slice(24, 30),),
        "head": (slice(30, 36), slice(36, 38)),
    }
    for prefix, slices in parts.items():
        tensors = [updates[:, part].astype(np.float64) for part in slices]
        layer = np.concatenate(tensors, axis=1)
        variance, mean = layer.var(axis=0), layer.mean(axis=0)
        plain = {
            "robust": variance.sum() / ((mean**2).sum() + 1e-12),
            "release": sum(np.var(tensor) / np.mean(tensor) for tensor in tensors),
            "magnitude": variance.mean() / abs(mean).mean(),
        }
        for reading in READINGS:
            assert scores(reading, NET, Blocks(updates, width))[prefix] == pytest.approx(plain[reading], rel=1e-6)


def test_layers_are_dense_and_convolutional_with_weight_and_bias_together() -> None:
    assert layers(NET) == {"conv": slice(0, 20), "body.dense": slice(24, 30), "head": slice(30, 38)}


def test_a_bias_may_stand_before_its_weight_and_a_model_may_be_one_layer() -> None:
    tensors = (TensorSpec("bias", "float32", (2,)), TensorSpec("weight", "float32", (2, 3)))
    assert layers(tensors) == {"": slice(0, 8)}


def test_a_frozen_bias_is_no_part_of_its_layer() -> None:
    tensors = (TensorSpec("a.weight", "float32", (2, 3)), TensorSpec("a.bias", "float32", (2,), trainable=False))
    assert layers(tensors) == {"a": slice(0, 6)}


def test_a_layer_in_two_places_is_refused() -> None:
    tensors = (
        TensorSpec("a.weight", "float32", (2, 3)),
        TensorSpec("b.weight", "float32", (2, 3)),
        TensorSpec("a.bias", "float32", (2,)),
    )
    with pytest.raises(TaskError, match="layer 'a' are not next to each other"):
        layers(tensors)


def test_a_model_without_such_a_layer_is_refused() -> None:
    with pytest.raises(TaskError, match="no trainable dense or convolutional layer"):
        layers((TensorSpec("norm.weight", "float32", (3,)),))


def test_clients_that_agree_score_nothing_and_those_without_consensus_the_most() -> None:
    agreeing = np.array([[0.0] * 4 + [1.0, 2.0]] * 3)
    opposed = np.array([[0.0] * 4 + [1.0, -2.0], [0.0] * 4 + [-1.0, 2.0]])
    for reading in READINGS:
        assert scores(reading, TWO, Blocks(agreeing[:, :4].repeat(2, axis=1), 4))["one"] == 0.0
        assert scores(reading, TWO, Blocks(opposed, 4))["two"] > 1e6
    for reading in ("robust", "magnitude"):
        assert scores(reading, TWO, Blocks(agreeing, 4)) == {"one": 0.0, "two": 0.0}


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 100))
def test_the_robust_reading_does_not_depend_on_the_scale_of_a_layer(scale: float) -> None:
    plain = scores("robust", TWO, Blocks(UPDATES, 4))
    scaled = scores("robust", TWO, Blocks(UPDATES * scale, 4))
    assert scaled == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    ("given_scores", "chosen"),
    [({"a": -2.0, "b": -1.0}, "b"), ({"a": 1.0, "b": 3.0, "c": 3.0}, "b"), ({"a": 0.0, "b": math.inf}, "b")],
)
def test_the_largest_signed_score_wins_and_of_equals_the_first(given_scores: dict[str, float], chosen: str) -> None:
    assert choose(given_scores) == chosen
