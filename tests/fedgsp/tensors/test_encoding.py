"""Weights rounded to bfloat16, and their streams."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.encoding import Decoder, encoded, rounded, wire_bytes
from fedgsp.tensors.memory import room
from fedgsp.tensors.weights import Weights, padded_bytes
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.pacing import MOST_NEAR_CHUNK
from tests.support.holders import (
    PLENTY,
    answer_to,
    answer_to_upload,
    data,
    digest,
    header,
    serving_store,
)
from tests.support.weights import TENSORS, some_weights, vector

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
layouts = st.lists(
    st.tuples(st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16", "int8"]), shapes)
).map(lambda specs: tuple(TensorSpec(f"t{i}", *spec) for i, spec in enumerate(specs)))


def normal(tensors: tuple[TensorSpec, ...], seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    return Weights.of({spec.name: 10 * rng.standard_normal(spec.shape) for spec in tensors}, tensors)


# --- rounding


@given(layouts, st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_only_float32_is_rounded_and_only_once(tensors: tuple[TensorSpec, ...], seed: int) -> None:
    before = normal(tensors, seed)
    weights = rounded(before.copy())
    assert weights.bfloat16
    for spec in tensors:
        was: Any = before.arrays[spec.name]
        found: Any = weights.arrays[spec.name]
        if spec.dtype == "float32":
            assert not np.any(found.view(np.uint32) & 0xFFFF)
            assert np.all(np.abs(found - was) <= np.abs(was) * 2.0**-8)
        else:
            assert found.tobytes() == was.tobytes()
    assert rounded(Weights(tensors, weights.buffer.copy())).digest == weights.digest
    assert rounded(weights) is weights


def test_rounding_takes_place_in_the_memory_of_weights_that_nobody_knows_yet() -> None:
    weights = normal(vector(7))
    assert rounded(weights) is weights
    known = normal(vector(7))
    before = known.digest
    assert rounded(known).digest == weights.digest != before
    assert Weights(known.tensors, known.buffer).digest == before


def test_a_part_of_rounded_weights_is_rounded_and_a_copy_is_there_to_be_changed() -> None:
    weights = rounded(normal(TENSORS))
    assert weights.part(TENSORS[:1]).bfloat16
    assert not weights.copy().bfloat16


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000])
def test_what_is_not_finite_stays_so_and_is_refused_later(bits: int) -> None:
    weights = normal(vector(2))
    weights.buffer[4:].view(np.uint32)[:] = bits
    values = rounded(weights).arrays["w"]
    assert [bool(np.isfinite(value)) for value in values] == [True, False]


# --- streams


def cut(stream: bytes, places: list[int], step: int) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) // step + 1) * step for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(layouts, st.booleans(), st.integers(1, 20), st.lists(st.integers(0, 1000), max_size=4))
@settings(deadline=None, max_examples=60)
def test_a_stream_becomes_the_same_buffer_wherever_it_is_cut_between_values(
    tensors: tuple[TensorSpec, ...], bfloat16: bool, chunk: int, places: list[int]
) -> None:
    weights = normal(tensors)
    weights = rounded(weights) if bfloat16 else weights
    chunks = [bytes(part) for part in encoded(weights, 4 * chunk)]
    assert all(0 < len(part) <= 4 * chunk for part in chunks)
    stream = b"".join(chunks)
    saved = sum(padded_bytes(spec) // 2 for spec in tensors if bfloat16 and spec.dtype == "float32")
    assert len(stream) == wire_bytes(tensors, bfloat16) == weights.buffer.nbytes - saved
    for parts in (chunks, cut(stream, places, 2 if bfloat16 else 1)):
        buffer = room(weights.buffer.nbytes)
        decoder = Decoder(buffer, tensors, bfloat16)
        assert b"".join(bytes(decoder.put(memoryview(part))) for part in parts) == weights.buffer.tobytes()
        assert buffer.tobytes() == weights.buffer.tobytes()


@pytest.mark.parametrize("elements", [0, 1, MOST_NEAR_CHUNK // 2 - 1, MOST_NEAR_CHUNK // 2 + 1])
async def test_rounded_weights_come_as_they_were_kept_and_can_be_handed_on(elements: int) -> None:
    store, weights = ModelStore(), rounded(normal(vector(elements)))
    store.put("m", weights)
    async with serving_store(store) as served:
        fetched = await fetch(served.channel, "m", vector(elements), weights.buffer.nbytes)
    assert fetched.bfloat16
    assert fetched.tensors == weights.tensors
    assert fetched.buffer.tobytes() == weights.buffer.tobytes()
    assert fetched.digest == weights.digest


async def test_rounded_weights_can_be_uploaded() -> None:
    store, weights = ModelStore(), rounded(normal(TENSORS))
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: 40) as served:
        await upload(served.channel, "m", weights)
    kept = await store.get("m")
    assert (kept.bfloat16, kept.digest) == (True, weights.digest)


WEIGHTS = rounded(some_weights())
BYTES = b"".join(part for part in encoded(WEIGHTS, 100))  # 12 of float32, 8 of float16, 8 of int64
HEADER = header(encoding="bfloat16")
OTHER = bytes([BYTES[0] ^ 1]) + BYTES[1:]
BAD_STREAMS = {
    "an unknown encoding": ([header(encoding="float8"), data(BYTES)], FailureCode.BAD_STREAM, "encoding 'float8'"),
    "a long name": ([header(encoding="x" * 9999), data(BYTES)], FailureCode.BAD_STREAM, f"encoding '{'x' * 40}'"),
    "no encoding": ([header(), data(BYTES), digest()], FailureCode.CUT_SHORT, "28 of 40 bytes"),
    "the buffer itself": (
        [HEADER, data(WEIGHTS.buffer.tobytes())],
        FailureCode.TOO_LONG,
        "more than the announced 28 bytes",
    ),
    "half a value": ([HEADER, data(BYTES[:3]), data(BYTES[3:]), digest()], FailureCode.BAD_STREAM, "within a value"),
    "a stream that was cut": ([HEADER, data(BYTES[:-2]), digest()], FailureCode.CUT_SHORT, "26 of 28 bytes"),
    "a cut within the last bytes": ([HEADER, data(BYTES[:-1]), digest()], FailureCode.CUT_SHORT, "27 of 28 bytes"),
    "no digest": ([HEADER, data(BYTES)], FailureCode.CUT_SHORT, "28 of 28 bytes came, and no digest"),
    "a byte too much": ([HEADER, data(BYTES), data(b"!")], FailureCode.TOO_LONG, "more than the announced 28"),
    "other bytes": ([HEADER, data(OTHER), digest()], FailureCode.WRONG_DIGEST, "announced digest"),
    "the size of the stream": (
        [header(size=28, encoding="bfloat16"), data(BYTES)],
        FailureCode.WRONG_SHAPES,
        "announces 28 bytes, its tensors have 40",
    ),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_a_fetch_and_an_upload_refuse(name: str) -> None:
    chunks, code, text = BAD_STREAMS[name]
    failure = await answer_to(chunks, max_bytes=PLENTY)
    assert failure.code is code
    assert text in failure.detail
    told, store = await answer_to_upload(chunks)
    assert told.startswith(code.name.lower())
    assert text in told
    assert len(store) == 0


async def test_infinity_is_refused_in_two_bytes_too() -> None:
    weights = Weights.of({"w": np.array([np.inf])}, vector(1))
    weights.bfloat16 = True
    chunks = [
        header(weights.tensors, size=8, encoding="bfloat16"),
        *(data(bytes(part)) for part in encoded(weights, 100)),
        digest(weights.digest),
    ]
    assert (await answer_to(chunks, expected=vector(1))).code is FailureCode.NOT_FINITE
