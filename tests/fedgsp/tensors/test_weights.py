from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.weights import (
    MAX_DIMENSIONS,
    Weights,
    WeightsError,
    check_finite,
    check_same_tensors,
    nbytes,
    total_bytes,
)
from tests.support.weights import TENSORS, some_weights

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
layouts = st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes, st.booleans()), min_size=0, max_size=6).map(
    lambda specs: tuple(TensorSpec(f"t{i}", *spec) for i, spec in enumerate(specs))
)


@given(layouts, st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_tensors_lie_in_order_aligned_and_apart(tensors: tuple[TensorSpec, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {spec.name: rng.integers(0, 100, spec.shape).astype(spec.dtype) for spec in tensors}
    weights = Weights.of(arrays, tensors)
    assert weights.buffer.shape == (total_bytes(tensors),)
    assert list(weights.arrays) == [spec.name for spec in tensors]
    offset = 0
    for spec in tensors:
        assert offset % 8 == 0
        part = weights.buffer[offset : offset + nbytes(spec)]
        assert part.tobytes() == arrays[spec.name].tobytes()
        assert weights.arrays[spec.name].dtype == DTYPES[spec.dtype]
        assert np.array_equal(weights.arrays[spec.name], arrays[spec.name])
        offset += nbytes(spec)
        padding = -offset % 8
        assert not weights.buffer[offset : offset + padding].any()
        offset += padding
    assert offset == total_bytes(tensors)


def test_arrays_are_views_of_the_buffer() -> None:
    weights = some_weights()
    weights.arrays["w"][0, 0] = 1.5
    assert weights.buffer[:4].view(np.float32)[0] == 1.5


def test_a_copy_shares_nothing() -> None:
    weights = some_weights()
    before = weights.buffer.tobytes()
    weights.copy().arrays["w"][...] = 0
    assert weights.buffer.tobytes() == before


def test_equal_tensors_have_equal_digests_whatever_memory_they_came_from() -> None:
    arrays = {"a": np.ones(3, np.int8)}
    tensors = (TensorSpec("a", "int8", (3,)),)
    first, second = Weights.of(arrays, tensors), Weights.of(arrays, tensors)
    assert first.digest == second.digest == blake3(b"\x01\x01\x01\0\0\0\0\0").digest()


def test_a_reference_names_size_and_digest() -> None:
    weights = some_weights()
    ref = weights.ref("r/1")
    assert (ref.id, ref.size, ref.digest) == ("r/1", 40, weights.digest)
    assert some_weights(1).digest != weights.digest


@pytest.mark.parametrize("dtype", ["", "object", "O", "float128", "complex64", ">f4", "str", "uint64", "Float32"])
def test_a_dtype_that_no_model_has_is_refused(dtype: str) -> None:
    with pytest.raises(WeightsError, match="has dtype") as caught:
        total_bytes((TensorSpec("w", dtype, (1,)),))
    assert caught.value.failure.code is FailureCode.WRONG_SHAPES


@pytest.mark.parametrize(
    "shape",
    [
        (1,) * (MAX_DIMENSIONS + 1),
        (2**63,),
        (2**61,),
        (2**64 - 1, 2**64 - 1),
        (2**32, 2**32),
        (0, 2**63),
        (2**32, 2**32, 0),
        (0, 2**62, 4),
        (2**64 - 1,) * 100_000,
    ],
    ids=lambda shape: str(shape[:3]),
)
def test_a_shape_that_no_array_has_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(WeightsError, match=r"dimensions|shape") as caught:
        total_bytes((TensorSpec("w", "float32", shape),))
    assert caught.value.failure.code is FailureCode.WRONG_SHAPES
    assert len(str(caught.value)) < 1000


@given(shapes.map(lambda shape: (TensorSpec("w", "float64", shape),)))
def test_a_shape_that_is_not_refused_can_be_had(tensors: tuple[TensorSpec, ...]) -> None:
    assert total_bytes(tensors) == 8 * math.prod(tensors[0].shape)
    assert Weights.empty(tensors).arrays["w"].shape == tensors[0].shape


def test_the_most_dimensions_can_be_had() -> None:
    shape = (1,) * MAX_DIMENSIONS
    assert Weights.empty((TensorSpec("w", "int8", shape),)).arrays["w"].shape == shape


def test_a_name_may_not_hide_another_tensor() -> None:
    with pytest.raises(WeightsError, match="'w' is named twice"):
        total_bytes((TENSORS[0], TENSORS[1], TENSORS[0]))


@given(
    dtype=st.sampled_from(["bfloat16", "float16", "float32", "float64"]),
    bad=st.sampled_from([math.nan, -math.nan, math.inf, -math.inf]),
    where=st.integers(0, 19),
)
@settings(deadline=None)
def test_one_value_that_is_not_finite_is_found(dtype: str, bad: float, where: int) -> None:
    weights = Weights.of({"w": np.ones((4, 5))}, (TensorSpec("w", dtype, (4, 5)),))
    weights.arrays["w"].reshape(-1)[where] = bad
    with pytest.raises(WeightsError, match="'w' holds NaN or infinite") as caught:
        check_finite(weights)
    assert caught.value.failure.code is FailureCode.NOT_FINITE


@pytest.mark.parametrize(("byte", "sound"), [(0, True), (1, True), (2, False), (255, False)])
def test_a_truth_value_is_one_of_two_bytes(byte: int, sound: bool) -> None:
    weights = Weights.of({"mask": np.array([True, False])}, (TensorSpec("mask", "bool", (2,)),))
    weights.buffer[1] = byte
    with contextlib.nullcontext() if sound else pytest.raises(WeightsError, match="neither true nor false"):
        check_finite(weights)


def test_a_signalling_nan_is_found_without_a_warning() -> None:
    weights = Weights.empty((TensorSpec("w", "float32", (2,)),))
    weights.buffer[:] = np.array([0x3F800000, 0x7FA00000], np.uint32).view(np.uint8)
    with pytest.raises(WeightsError):
        check_finite(weights)


def test_the_largest_floats_integers_and_empty_tensors_are_finite() -> None:
    tensors = (TensorSpec("w", "float16", (1,)), TensorSpec("e", "float32", (0, 3)), TensorSpec("i", "int64", (1,)))
    arrays = {"w": np.array([65504.0]), "e": np.zeros((0, 3)), "i": np.array([-1])}  # all bits of i are set
    check_finite(Weights.of(arrays, tensors))
    check_finite(Weights.empty(()))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "v"}, "tensor 'v' float32[2, 3] where tensor 'w' float32[2, 3]"),
        ({"dtype": "float64"}, "tensor 'w' float64[2, 3] where tensor 'w' float32[2, 3]"),
        ({"shape": (3, 2)}, "tensor 'w' float32[3, 2] where tensor 'w' float32[2, 3]"),
        ({"shape": (6,)}, "tensor 'w' float32[6] where tensor 'w' float32[2, 3]"),
        ({"trainable": False}, "buffer 'w' float32[2, 3] where tensor 'w' float32[2, 3]"),
    ],
)
def test_a_tensor_that_differs_is_named(changed: dict[str, object], said: str) -> None:
    other = (dataclasses.replace(TENSORS[0], **changed), *TENSORS[1:])  # type: ignore[arg-type]
    with pytest.raises(WeightsError) as caught:
        check_same_tensors(other, TENSORS, "the model")
    assert caught.value.failure.detail == f"the model has {said} is expected"
    assert caught.value.failure.code is FailureCode.WRONG_SHAPES


@pytest.mark.parametrize("found", [TENSORS[:2], (), (*TENSORS, TensorSpec("x", "int8", ()))])
def test_missing_and_further_tensors_are_counted(found: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(WeightsError, match=f"has {len(found)} tensors where 3 are expected"):
        check_same_tensors(found, TENSORS, "the model")


def test_the_same_tensors_pass() -> None:
    check_same_tensors(tuple(dataclasses.replace(spec) for spec in TENSORS), TENSORS, "the model")
