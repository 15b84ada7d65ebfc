"""What a client shows of its update; the statements of decision 7 are held here, with fixed seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import TensorSpec
from fedgsp.tensors.updates import LENGTH_BYTES, SKETCH_BYTES, trainable_size
from fedgsp.tensors.weights import Weights
from fedgsp_node.updates import reveal

SPECS = (
    TensorSpec("conv.weight", "float32", (3, 2, 2)),
    TensorSpec("conv.bias", "float32", (3,)),
    TensorSpec("norm.weight", "float32", (3,)),
    TensorSpec("norm.bias", "float32", (3,)),
    TensorSpec("norm.running_mean", "float32", (3,), trainable=False),
    TensorSpec("norm.batches", "int64", (), trainable=False),
    TensorSpec("head.weight", "float64", (2, 12)),
    TensorSpec("head.bias", "bfloat16", (2,)),
)
PARAMETERS = 12 + 3 + 3 + 3 + 24 + 2


def random_weights(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return Weights.of({spec.name: rng.integers(-99, 99, spec.shape) for spec in SPECS}, SPECS)


def shown(view: str, vector: np.ndarray, seed: int = 0) -> np.ndarray:
    """What a client shows whose update is `vector`: it started there and came to zero, at learning rate 1."""
    specs = (TensorSpec("w", "float32", vector.shape),)
    start, after = Weights.of({"w": vector}, specs), Weights.of({"w": np.zeros_like(vector)}, specs)
    return reveal(view, start, after, 1.0, seed).arrays["update"]


def signs(vectors: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Shape (N, 8 size), 1 for a minus."""
    sketches = [shown(f"sketch:{size}", vector.astype(np.float32), seed) for vector in vectors]
    return np.unpackbits(np.stack(sketches)[:, LENGTH_BYTES:], axis=1)


def length(sketch: np.ndarray) -> float:
    return float(np.frombuffer(sketch[:LENGTH_BYTES].tobytes(), "<f8")[0])


def angle(pair: np.ndarray, size: int, seed: int) -> float:
    """As the sketches of two updates tell it."""
    first, second = signs(pair, size, seed)
    return math.pi * float((first != second).mean())


def cosines(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1)
    return rows @ rows.T / np.outer(norms, norms)


def unit_pair(cosine: float, size: int, seed: int, heavy: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scale = np.exp(2 * rng.standard_normal(size)) if heavy else np.ones(size)
    first, second = rng.standard_normal((2, size)) * scale
    first /= np.linalg.norm(first)
    second -= first * (first @ second)
    second /= np.linalg.norm(second)
    return np.stack([first, cosine * first + math.sqrt(1 - cosine**2) * second])


def test_only_trainable_floats_count() -> None:
    assert trainable_size(SPECS) == PARAMETERS


def test_the_exact_view_is_the_difference_over_the_learning_rate_in_the_order_of_the_model() -> None:
    start, after = random_weights(1), random_weights(2)
    update = reveal("exact", start, after, 0.5, 0)
    assert update.tensors == (TensorSpec("update", "float32", (PARAMETERS,)),)
    names = [spec.name for spec in SPECS if spec.trainable]
    before: Mapping[str, Any] = start.arrays
    expected = np.concatenate([(before[name] - after.arrays[name]).reshape(-1) / 0.5 for name in names])
    assert update.arrays["update"].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("prefix", "part"), [("conv", slice(0, 15)), ("norm", slice(15, 21)), ("head", slice(21, 47))]
)
def test_a_layer_is_its_part_of_the_exact_view(prefix: str, part: slice) -> None:
    start, after = random_weights(1), random_weights(2)
    exact = reveal("exact", start, after, 0.1, 0).arrays["update"]
    assert reveal(f"layer:{prefix}", start, after, 0.1, 0).arrays["update"].tolist() == exact[part].tolist()


def test_a_model_that_is_one_layer_has_an_empty_prefix() -> None:
    specs = (TensorSpec("weight", "float32", (1, 2)), TensorSpec("bias", "float32", (1,)))
    start = Weights.of({"weight": np.array([[1, 2]]), "bias": np.array([3])}, specs)
    after = Weights.of({"weight": np.zeros((1, 2)), "bias": np.zeros(1)}, specs)
    assert reveal("layer:", start, after, 1.0, 0).arrays["update"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("gradient", "no view of an update is called 'gradient'; there are: exact, layer, sketch"),
        ("exact:all", "takes nothing after it"),
        ("layer:fc9", "no layer 'fc9'"),
        ("layer", "no layer ''"),
        *(
            (f"sketch{size}", "the signs of a sketch are 8, 16")
            for size in ("", ":", ":0", ":-8", ":8k", ":12", ":262144")
        ),
    ],
)
def test_a_view_that_does_not_exist_is_refused(view: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reveal(view, random_weights(1), random_weights(2), 0.1, 0)


@pytest.mark.parametrize("rate", [0.0, -0.1, math.nan, math.inf])
def test_a_learning_rate_that_gives_no_update_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="gives no update"):
        reveal("exact", random_weights(1), random_weights(2), rate, 0)


def test_weights_of_two_models_are_refused() -> None:
    with pytest.raises(ValueError, match="one model"):
        reveal("exact", random_weights(1), Weights.empty(SPECS[:2]), 0.1, 0)


@pytest.mark.parametrize("size", [8, 16384, int(SKETCH_BYTES[-1])])
def test_a_sketch_is_the_same_for_one_seed_and_another_for_another(size: int) -> None:
    vector = np.random.default_rng(0).standard_normal((1, 150_000))
    assert np.array_equal(signs(vector, size, 5), signs(vector, size, 5))
    differ = (signs(vector, size, 5) != signs(vector, size, 6)).mean()
    assert abs(differ - 0.5) < 5 * 0.5 / math.sqrt(8 * size)


def test_a_sketch_is_the_same_on_every_machine_and_for_every_version() -> None:
    sketch = shown("sketch:8", np.arange(1, 101, dtype=np.float32), 42)
    assert length(sketch) == math.sqrt(100 * 101 * 201 / 6)
    assert sketch[LENGTH_BYTES:].tolist() == PINNED


PINNED = [2, 42, 191, 49, 160, 222, 162, 204]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.sampled_from([0.25, 2.0, 1024.0]), st.integers(0, 2**32))
def test_only_the_length_tells_how_long_an_update_is(size: int, scale: float, seed: int) -> None:
    vector = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    one, other = (shown("sketch:64", factor * vector, seed) for factor in (np.float32(1), np.float32(scale)))
    assert length(one) == pytest.approx(float(np.linalg.norm(vector.astype(np.float64))), rel=1e-12)
    assert length(other) == scale * length(one)
    assert one[LENGTH_BYTES:].tolist() == other[LENGTH_BYTES:].tolist()


def test_signs_of_the_opposite_update_are_the_opposite_ones() -> None:
    vector = np.random.default_rng(3).standard_normal((1, 5000))
    assert (signs(vector, 1024, 0) != signs(-vector, 1024, 0)).all()


def test_an_update_of_nothing_has_no_length() -> None:
    assert not shown("sketch:64", np.zeros(100, np.float32)).any()


@pytest.mark.parametrize(
    "cosine", [0.5, *(pytest.param(one, marks=pytest.mark.slow) for one in (-0.5, 0.0, 0.9, 0.99))]
)
@pytest.mark.parametrize("heavy", [False, True])
def test_cosines_of_sketches_err_as_decision_7_says(cosine: float, heavy: bool) -> None:
    size, repeats = 256, 200
    pair = unit_pair(cosine, 10_000, seed=2, heavy=heavy)
    errors = np.array([math.cos(angle(pair, size, seed)) - cosine for seed in range(repeats)])
    between = math.acos(cosine)
    sigma = math.sin(between) * math.sqrt(between * (math.pi - between) / (8 * size))
    assert abs(errors.mean()) < 4 * sigma / math.sqrt(repeats)
    assert (0.5 if heavy else 0.8) * sigma < errors.std() < 1.2 * sigma  # what is in one block never collides
    if not heavy:  # large ones of different blocks may collide, which a few large errors come from
        assert abs(errors).max() < 5 * sigma


@pytest.mark.parametrize(
    ("first", "second"),
    [({0: 1.0}, {0: 1.0, 5: 1.0}), ({0: 1.0, 5: 1.0}, {0: 1.0, 5: -1.0}), ({0: 1.0, 1: 0.5}, {0: 1.0, 2: -0.3})],
)
def test_updates_of_few_coordinates_are_told_apart_as_well(first: dict[int, float], second: dict[int, float]) -> None:
    """Signs of one turn alone would be those of a few equal numbers, and a quarter of them of zeros."""
    size, repeats = 64, 200
    pair = np.zeros((2, 1000))
    for row, entries in zip(pair, (first, second), strict=True):
        row[list(entries)] = list(entries.values())
    cosine = cosines(pair)[0, 1]
    errors = np.array([math.cos(angle(pair, size, seed)) - cosine for seed in range(repeats)])
    between = math.acos(cosine)
    sigma = math.sin(between) * math.sqrt(between * (math.pi - between) / (8 * size))
    assert abs(errors.mean()) < 4 * sigma / math.sqrt(repeats)
    assert errors.std() < 1.2 * sigma


def test_the_worst_of_all_pairs_stays_within_the_bound_for_many_clients() -> None:
    clients, size, number = 12, 2048, 20_000
    rng = np.random.default_rng(3)
    shared = rng.standard_normal(number)
    vectors = shared * rng.uniform(0, 4, (clients, 1)) + rng.standard_normal((clients, number))  # cosines of 0 to 0.9
    pairs = list(itertools.combinations(range(clients), 2))
    radius = math.pi * math.sqrt(math.log(2 * len(pairs) / 0.001) / (2 * 8 * size))
    true, told = cosines(vectors), signs(vectors, size, 0)
    errors = [abs(math.pi * (told[a] != told[b]).mean() - math.acos(true[a, b])) for a, b in pairs]
    assert max(errors) < radius
    assert max(errors) > radius / 10  # a bound that is about these errors


def test_batch_norm_buffers_are_in_no_view() -> None:
    start = random_weights(1)
    after = start.copy()
    arrays: Mapping[str, Any] = after.arrays
    arrays["norm.running_mean"][...] += 100
    arrays["norm.batches"][...] += 100
    for view in ("exact", "sketch:16"):
        assert not reveal(view, start, after, 0.1, 0).arrays["update"].any()
