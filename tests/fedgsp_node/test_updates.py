"""What a client shows of its update; the statements of decision 7 are held here, with fixed seeds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import TensorSpec
from fedgsp.updates import MOST_FLOATS, trainable_size
from fedgsp.weights import Weights
from fedgsp_node.updates import reveal

SPECS = (
    TensorSpec("conv.weight", "float32", (3, 2, 2)),
    TensorSpec("conv.bias", "float32", (3,)),
    TensorSpec("norm.weight", "float32", (3,)),
    TensorSpec("norm.bias", "float32", (3,)),
    TensorSpec("norm.running_mean", "float32", (3,), trainable=False),
    TensorSpec("norm.batches", "int64", (), trainable=False),
    TensorSpec("head.weight", "float64", (2, 12)),
    TensorSpec("head.bias", "float64", (2,)),
)
PARAMETERS = 12 + 3 + 3 + 3 + 24 + 2


def random_weights(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return Weights.of({spec.name: rng.integers(-99, 99, spec.shape) for spec in SPECS}, SPECS)


def shown(view: str, vector: np.ndarray, seed: int = 0) -> np.ndarray:
    """What a client shows whose update is `vector`: it started there and came to zero, at learning rate 1."""
    specs = (TensorSpec("w", "float32", vector.shape),)
    start, after = Weights.of({"w": vector}, specs), Weights.of({"w": np.zeros_like(vector)}, specs)
    return reveal(view, start, after, 1.0, seed).arrays["update"].astype(np.float64)


def sketches(vectors: np.ndarray, floats: int, seed: int) -> np.ndarray:
    return np.stack([shown(f"sketch:{floats}", vector.astype(np.float32), seed) for vector in vectors])


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
    expected = np.concatenate([(start.arrays[name] - after.arrays[name]).reshape(-1) / 0.5 for name in names])
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
        *((f"sketch{floats}", "1 to 32768 floats") for floats in ("", ":", ":0", ":-4", ":4k", f":{MOST_FLOATS + 1}")),
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


@pytest.mark.parametrize("floats", [7, 4096, MOST_FLOATS])
def test_a_sketch_is_the_same_for_one_seed_and_another_for_another(floats: int) -> None:
    vector = np.random.default_rng(0).standard_normal(150_000).astype(np.float32)
    assert np.array_equal(sketches(vector[None], floats, 5), sketches(vector[None], floats, 5))
    assert abs(cosines(np.concatenate([sketches(vector[None], floats, seed) for seed in (5, 6)]))[0, 1]) < 0.999


def test_a_sketch_is_the_same_on_every_machine_and_for_every_version() -> None:
    assert shown("sketch:4", np.arange(1, 11, dtype=np.float32), 42).tolist() == PINNED


PINNED = [2.0, -2.0, -1.0, -16.0]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.sampled_from([1, 2, 5, 64]), st.integers(0, 2**32))
def test_a_sketch_is_linear(size: int, floats: int, seed: int) -> None:
    first, second = np.random.default_rng(seed).integers(-1000, 1000, (2, size))  # sums of which are exact
    one, two, both = sketches(np.stack([first, second, first + second]), floats, seed)
    assert (one + two).tolist() == both.tolist()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 200), st.integers(0, 2**32))
def test_a_sketch_of_no_more_floats_than_it_has_loses_nothing(size: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).integers(-1000, 1000, (3, size))
    sketched = sketches(vectors, 200, seed)
    assert (sketched @ sketched.T).tolist() == (vectors @ vectors.T).tolist()


def test_every_coordinate_goes_to_one_place_and_those_of_a_block_to_different_ones() -> None:
    matrix = sketches(np.eye(70), 32, 3)
    assert (np.count_nonzero(matrix, axis=1) == 1).all()
    assert set(matrix.reshape(-1)) == {-1.0, 0.0, 1.0}
    places = abs(matrix).argmax(axis=1)
    assert sorted(places[:32]) == sorted(places[32:64]) == list(range(32))
    assert len(set(places[64:])) == 6
    assert places[:32].tolist() != places[32:64].tolist()


@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("heavy", [False, True])
def test_inner_products_are_unbiased_and_vary_no_more_than_the_bound(cosine: float, heavy: bool) -> None:
    floats, repeats = 64, 400
    pair = unit_pair(cosine, 1000, seed=1, heavy=heavy)
    products = np.array([np.prod(sketches(pair, floats, seed), axis=0).sum() for seed in range(repeats)])
    bound = (1 + cosine**2) / floats
    assert abs(products.mean() - cosine) < 4 * math.sqrt(bound / repeats)
    assert products.var() < 1.3 * bound
    blocks = [pair[:, at : at + floats] for at in range(0, 1000, floats)]
    same = sum((a @ a) * (b @ b) + (a @ b) ** 2 for a, b in blocks)  # inside a block nothing collides
    assert products.var() == pytest.approx((1 + cosine**2 - same) / floats, rel=0.35)


@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.9, 0.99])
def test_cosines_of_sketches_err_by_one_minus_their_square_over_the_root_of_the_floats(cosine: float) -> None:
    floats, repeats = 256, 200
    pair = unit_pair(cosine, 10_000, seed=2)
    errors = np.array([cosines(sketches(pair, floats, seed))[0, 1] - cosine for seed in range(repeats)])
    sigma = (1 - cosine**2) / math.sqrt(floats)
    assert abs(errors.mean()) < 4 * sigma / math.sqrt(repeats)
    assert 0.8 * sigma < errors.std() < 1.2 * sigma
    assert abs(errors).max() < 4.5 * sigma


def test_the_worst_of_all_pairs_stays_within_the_bound_for_many_clients() -> None:
    clients, floats, size = 12, 1024, 20_000
    rng = np.random.default_rng(3)
    shared = rng.standard_normal(size)
    vectors = shared * rng.uniform(0, 4, (clients, 1)) + rng.standard_normal((clients, size))  # cosines of 0 to 0.9
    pairs = list(itertools.combinations(range(clients), 2))
    radius = math.sqrt(2 * math.log(len(pairs) / 0.001) / floats)
    true, seen = cosines(vectors), cosines(sketches(vectors, floats, 0))
    errors = [abs(math.atanh(seen[pair]) - math.atanh(true[pair])) for pair in pairs]
    assert max(errors) < radius
    assert max(errors) > radius / 10  # a bound that is about these errors


def test_a_sketch_answers_for_groups_as_well() -> None:
    vectors = np.random.default_rng(4).standard_normal((5, 20_000)) + 0.5
    weights = np.array([3.0, 1, 4, 1, 5])
    sketched = sketches(vectors, 4096, 0)
    merged = cosines(np.stack([*sketched, weights @ sketched]))[-1]
    assert np.allclose(merged, cosines(np.stack([*vectors, weights @ vectors]))[-1], atol=5 / math.sqrt(4096))


def test_batch_norm_buffers_are_in_no_view() -> None:
    start = random_weights(1)
    after = start.copy()
    after.arrays["norm.running_mean"][...] += 100
    after.arrays["norm.batches"][...] += 100
    for view in ("exact", "sketch:16"):
        assert not reveal(view, start, after, 0.1, 0).arrays["update"].any()
