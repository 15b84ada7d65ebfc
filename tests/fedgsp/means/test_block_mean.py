from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.means.averages import BLOCK, Mean
from fedgsp.means.block_mean import BlockMean
from fedgsp.messages import TensorSpec
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.weights import Weights
from tests.support.weights import vector

specs = st.lists(
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 7), max_size=3)), min_size=1, max_size=6
).map(lambda found: tuple(TensorSpec(f"t{i}", dtype, tuple(shape)) for i, (dtype, shape) in enumerate(found)))
weight = st.floats(1e-3, 1e6) | st.integers(1, 10_000)


def random_model(tensors: tuple[TensorSpec, ...], seed: int) -> Weights:
    rng, weights = np.random.default_rng(seed), Weights.empty(tensors)
    for array in weights.arrays.values():
        array[...] = rng.integers(0, 2, array.shape) if array.dtype.kind in "biu" else rng.normal(0, 9, array.shape)
    return weights


def one_after_the_other(models: list[Weights], weights: list[float]) -> bytes:
    mean = Mean(weighted=True)
    for model, samples in zip(models, weights, strict=True):
        mean.fold(model, samples)
    return mean.result().digest


def by_blocks(models: list[Weights], weights: list[float], ends: list[int]) -> bytes:
    """Folded to each of these ends; what comes after an end is not there yet."""
    mean, came = BlockMean(models[0].tensors, weights), 0
    for end in [*ends, mean.size]:
        for room, model in zip(mean.rooms, models, strict=True):
            room[came:end] = model.buffer[came:end]
        mean.fold_to(end)
        assert mean.folded < end + 8  # padding is not waited for
        came = end
    return mean.result().digest


@given(tensors=specs, weights=st.lists(weight, min_size=1, max_size=5), seed=st.integers(0, 2**32), data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_mean_has_the_bits_of_models_folded_one_after_the_other(
    tensors: tuple[TensorSpec, ...], weights: list[float], seed: int, data: st.DataObject
) -> None:
    models = [random_model(tensors, seed + number) for number in range(len(weights))]
    ends = data.draw(st.lists(st.integers(0, len(models[0].buffer)), max_size=4).map(sorted))
    assert by_blocks(models, weights, ends) == one_after_the_other(models, weights)


@pytest.mark.parametrize("elements", [BLOCK - 1, BLOCK + 1, (5 << 20) // 4 + 3])
def test_tensors_longer_than_a_block_are_folded_to_the_end_while_their_bytes_go(elements: int) -> None:
    tensors = (*vector(elements), TensorSpec("last", "float16", (3,)), TensorSpec("seen", "int64", ()))
    models = [random_model(tensors, seed) for seed in range(3)]
    expected = one_after_the_other(models, [3, 1, 2])
    size = len(models[0].buffer)
    assert by_blocks(models, [3, 1, 2], list(range(7, size, (1 << 20) + 13))) == expected


def test_what_was_folded_is_not_in_memory_any_more() -> None:
    models = [random_model(vector(3 << 20), seed) for seed in range(2)]
    mean = BlockMean(models[0].tensors, [1, 1])
    for room, model in zip(mean.rooms, models, strict=True):
        room[...] = model.buffer
    mean.fold_to(8 << 20)
    for room, model in zip(mean.rooms, models, strict=True):
        assert not room[: 4 << 20].any()  # new pages
        assert np.array_equal(room[8 << 20 :], model.buffer[8 << 20 :])


def test_a_model_of_no_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="weigh"):
        BlockMean(vector(3), [1, 0])
