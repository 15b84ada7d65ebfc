"""The code of weights: the same bits for any tensors and any base, and a reason for everything else."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.encoding import rounded
from fedgsp.tensors.memory import room
from fedgsp.tensors.spill import SPILLED_BYTES, spilling_room
from fedgsp.tensors.weights import CODED, PACKED, Weights, WeightsError, total_bytes
from fedgsp.transfers import coding
from fedgsp.transfers.coding import Block, Decoder, Encoder, blocks, coded_size
from tests.support.weights import TENSORS, some_weights, vector

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"]
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
layouts = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=6).map(
    lambda specs: tuple(TensorSpec(f"t{i}", *spec) for i, spec in enumerate(specs))
)


def any_bits(tensors: tuple[TensorSpec, ...], seed: int, bfloat16: bool) -> Weights:
    """Weights of any bits at all; only padding is 0, and with `bfloat16` what a rounded float32 does not have."""
    weights = Weights(tensors, room(total_bytes(tensors)))
    weights.buffer[:] = np.random.default_rng(seed).integers(0, 256, len(weights.buffer), np.uint8)
    weights.clear_padding()
    if bfloat16:
        for spec in tensors:
            if spec.dtype == "float32":
                weights.arrays[spec.name].view(np.uint32)[...] &= np.uint32(0xFFFF0000)
    weights.bfloat16 = bfloat16
    return weights


def near(base: Weights, seed: int) -> Weights:
    """Weights that differ little from a base, up and down, as after a training."""
    weights = base.copy()
    weights.bfloat16 = base.bfloat16
    rng = np.random.default_rng(seed)
    for block in blocks(base.tensors, base.bfloat16):
        values = block.of(weights)
        values += rng.integers(-3, 4, len(values)).astype(values.dtype)
    return weights


def code_of(weights: Weights, base: Weights | None) -> list[bytes]:
    encoder = Encoder(weights, base)
    return [encoder.frame(block) for block in blocks(weights.tensors, weights.bfloat16)]


def empty_like(weights: Weights) -> Weights:
    return Weights(weights.tensors, room(len(weights.buffer)), bfloat16=weights.bfloat16)


def decoded(chunks: Iterator[bytes] | list[bytes], like: Weights, base: Weights | None) -> Weights:
    found = empty_like(like)
    decoder, filled = Decoder("model 'm'", found, base), 0
    for chunk in chunks:
        for part in decoder.put(memoryview(chunk)):
            filled += len(part)
            assert filled == decoder.filled
    assert decoder.complete
    return found


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges) if end > start]


@given(layouts, st.booleans(), st.sampled_from(["none", "near", "far"]), st.integers(0, 99), st.lists(st.integers(0)))
@settings(deadline=None, max_examples=100)
def test_any_weights_come_out_bit_for_bit_wherever_their_stream_is_cut(
    tensors: tuple[TensorSpec, ...], bfloat16: bool, kind: str, seed: int, places: list[int]
) -> None:
    other = any_bits(tensors, seed, bfloat16)
    weights = any_bits(tensors, seed + 1, bfloat16) if kind == "far" else near(other, seed)
    base = None if kind == "none" else other
    stream = b"".join(code_of(weights, base))
    assert decoded(cut(stream, places), weights, base).buffer.tobytes() == weights.buffer.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_base", [True, False])
def test_models_of_several_blocks_come_out_bit_for_bit(dtype: str, with_base: bool) -> None:
    tensors = (TensorSpec("a", dtype, (2 * coding.BLOCK_VALUES + 3,)), TensorSpec("b", "float32", (5,)))
    base = any_bits(tensors, 0, False)
    weights = near(base, 1)
    stream = code_of(weights, base if with_base else None)
    assert decoded(stream, weights, base if with_base else None).buffer.tobytes() == weights.buffer.tobytes()


def test_a_rounded_model_can_be_coded_against_one_that_is_not() -> None:
    base = Weights.of({"w": np.random.default_rng(1).standard_normal(1000)}, vector(1000))
    weights = rounded(near(base, 2))
    assert decoded(code_of(weights, base), weights, base).buffer.tobytes() == weights.buffer.tobytes()


def test_values_that_cross_zero_are_coded_without_loss() -> None:
    base = Weights.of({"w": np.array([1e-38, -1e-38, 0.0, -0.0, 3.4e38, -3.4e38], np.float32)}, vector(6))
    weights = Weights.of({"w": np.negative(base.buffer.view(np.float32))}, vector(6))
    assert decoded(code_of(weights, base), weights, base).buffer.tobytes() == weights.buffer.tobytes()


def test_a_near_base_makes_the_code_shorter_and_the_model_itself_makes_it_vanish() -> None:
    base = Weights.of({"w": np.random.default_rng(0).standard_normal(200_000)}, vector(200_000))
    weights = Weights.of({"w": base.buffer.view(np.float32) * (1 + 1e-4)}, vector(200_000))
    alone, against, itself = (
        sum(map(len, code_of(weights, one))) for one in (None, base, Weights(weights.tensors, weights.buffer))
    )
    assert itself < 200 < against < 0.6 * alone < alone < weights.buffer.nbytes
    assert coded_size(weights, weights) < coded_size(weights, base) < coded_size(weights, None)


def test_what_no_code_makes_shorter_grows_only_by_the_heads_of_its_frames() -> None:
    weights = any_bits(vector(300_000), 3, False)
    frames = code_of(weights, any_bits(vector(300_000), 4, False))
    assert sum(map(len, frames)) == weights.buffer.nbytes + 5 * len(frames)


def test_what_a_decoder_says_of_itself() -> None:
    weights = some_weights()
    assert (Decoder("m", weights, None).coding, Decoder("m", weights, some_weights(1)).coding) == (PACKED, CODED)
    assert Decoder("m", weights, None).so_far == "0 of 40 bytes came in code"
    assert Decoder("m", Weights.empty(()), None).complete


# --- what is refused

BASE = some_weights(0, vector(5000))
WEIGHTS = near(BASE, 5)
(CODE,) = code_of(WEIGHTS, BASE)


def frame(kind: int, content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<BI", kind, len(content) if length is None else length) + content


def packed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


SIZED = vector(4096)
BAD = {
    "an unknown kind": (frame(2, b"x"), FailureCode.BAD_STREAM, "a frame of kind 2 with 1 bytes cannot be a block"),
    "plain values of another length": (frame(0, b"x" * 8), FailureCode.BAD_STREAM, "a frame of kind 0 with 8 bytes"),
    "a code that is no shorter": (frame(1, b"", 16384), FailureCode.BAD_STREAM, "kind 1 with 16384 bytes"),
    "a code of nothing": (frame(1, b""), FailureCode.BAD_STREAM, "kind 1 with 0 bytes"),
    "a length of gigabytes": (frame(1, b"", 2**32 - 1), FailureCode.BAD_STREAM, f"with {2**32 - 1} bytes"),
    "what is no code": (frame(1, b"\0" * 100), FailureCode.BAD_STREAM, "a code cannot be read"),
    "a code of more": (frame(1, packed(bytes(16385))), FailureCode.BAD_STREAM, "announces 16385 bytes for a block"),
    "a code of less": (frame(1, packed(bytes(16383))), FailureCode.BAD_STREAM, "announces 16383 bytes for a block"),
    "a bomb": (frame(1, packed(bytes(400_000_000))[:16000]), FailureCode.BAD_STREAM, "announces 400000000 bytes"),
    "two codes": (frame(1, packed(bytes(16384)) + packed(b"!")), FailureCode.BAD_STREAM, "cannot be read"),
    "bytes after the last block": (
        b"".join(code_of(some_weights(0, SIZED), None)) + b"!",
        FailureCode.TOO_LONG,
        "bytes came after its last block",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_decoder_refuses_with_a_reason(name: str) -> None:
    content, code, text = BAD[name]
    weights = empty_like(some_weights(0, SIZED))
    with pytest.raises(WeightsError) as caught:
        list(Decoder("model 'm'", weights, None).put(memoryview(content)))
    assert caught.value.failure.code is code
    assert text in caught.value.failure.detail
    assert caught.value.failure.detail.startswith("model 'm': ")


def test_a_bomb_whose_head_lies_takes_no_memory() -> None:
    """Its frame says that it has the right length, and holds a gigabyte."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = stream.compress(bytes(1 << 24)) * 1 + stream.flush()
    header = zstandard.ZstdCompressor().compress(bytes(16384))
    forged = bytearray(header[: zstandard.frame_header_size(header)]) + bomb[zstandard.frame_header_size(bomb) :]
    weights = empty_like(some_weights(0, SIZED))
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError):
            list(Decoder("model 'm'", weights, None).put(memoryview(frame(1, bytes(forged)))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@given(st.binary(max_size=60), st.integers(0, len(CODE)), st.sampled_from(["insert", "replace", "cut"]))
@settings(deadline=None, max_examples=200)
def test_a_spoilt_code_gives_a_reason_or_fills_the_weights_and_nothing_else(
    noise: bytes, place: int, how: str
) -> None:
    start, end = CODE[:place], CODE[place:]
    spoilt = {"insert": start + noise + end, "replace": start + noise + end[len(noise) :], "cut": start}[how]
    found = empty_like(WEIGHTS)
    decoder = Decoder("model 'm'", found, BASE)
    filled, why = 0, None
    try:
        filled = sum(map(len, decoder.put(memoryview(spoilt))))
    except WeightsError as error:
        why = error.failure.code
    assert why in (None, FailureCode.BAD_STREAM, FailureCode.TOO_LONG)
    assert why is not None or filled == decoder.filled
    assert not (why is None and decoder.complete and filled < len(found.buffer))


def test_a_code_that_was_cut_is_not_complete() -> None:
    found = empty_like(WEIGHTS)
    decoder = Decoder("model 'm'", found, BASE)
    list(decoder.put(memoryview(CODE[:-1])))
    assert not decoder.complete
    assert decoder.so_far == "0 of 20000 bytes came in code"


def test_blocks_cover_a_buffer_without_gaps() -> None:
    tensors = (*TENSORS, TensorSpec("big", "float32", (300_000,)), TensorSpec("flags", "bool", (7,)))
    for bfloat16 in (False, True):
        found = list(blocks(tensors, bfloat16))
        assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
        assert found[-1].end == total_bytes(tensors)
        assert all(0 < one.size <= coding.BLOCK_VALUES * one.width for one in found)
    assert Block(0, 16, 4, 2).size == 8


def test_large_weights_in_files_are_coded_and_decoded() -> None:
    tensors = vector(SPILLED_BYTES // 4 + 5)
    base = Weights(tensors, spilling_room(total_bytes(tensors)))
    base.buffer[:] = 0
    base.arrays["w"][:1000] = 1.5
    weights = Weights(tensors, spilling_room(total_bytes(tensors)))
    weights.buffer[:] = base.buffer
    weights.arrays["w"][500:1500] = 2.5
    found = Weights(tensors, spilling_room(total_bytes(tensors)))
    decoder = Decoder("model 'm'", found, base)
    encoder = Encoder(weights, base)
    for block in blocks(tensors, False):
        list(decoder.put(memoryview(encoder.frame(block))))
    assert decoder.complete
    assert np.array_equal(found.buffer, weights.buffer)
