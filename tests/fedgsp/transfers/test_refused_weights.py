from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, TensorSpec
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import model_streams
from fedgsp.transfers.model_calls import upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import model_pb2
from tests.support.holders import (
    BYTES,
    PLENTY,
    WEIGHTS,
    answer_to,
    answer_to_upload,
    data,
    digest,
    header,
    refused,
    serving_store,
)
from tests.support.weights import TENSORS, vector

# --- streams that are refused, whoever says them

NAN = Weights.of({"w": np.array([np.nan])}, vector(1))
BAD_STREAMS: dict[str, tuple[list[model_pb2.Chunk], FailureCode, str]] = {
    "nothing": ([], FailureCode.BAD_STREAM, "does not begin with a header"),
    "an unset oneof": ([model_pb2.Chunk()], FailureCode.BAD_STREAM, "does not begin with a header"),
    "bytes first": ([data(BYTES), header()], FailureCode.BAD_STREAM, "does not begin with a header"),
    "a header without a reference": (
        [model_pb2.Chunk(header=model_pb2.ModelHeader())],
        FailureCode.BAD_STREAM,
        "model '' was not asked for",
    ),
    "a digest first": ([digest(), header(), data(BYTES)], FailureCode.BAD_STREAM, "does not begin with a header"),
    "another model": ([header(model_id="x"), data(BYTES)], FailureCode.BAD_STREAM, "model 'x' was not asked for"),
    "a second header": ([header(), header(), data(BYTES)], FailureCode.BAD_STREAM, "holds no bytes"),
    "a header in the middle": ([header(), data(BYTES[:8]), header()], FailureCode.BAD_STREAM, "holds no bytes"),
    "an unset oneof in the middle": ([header(), model_pb2.Chunk()], FailureCode.BAD_STREAM, "holds no bytes"),
    "an empty chunk": ([header(), data(b""), data(BYTES)], FailureCode.BAD_STREAM, "holds no bytes"),
    "a stream that was cut": ([header(), data(BYTES[:-1]), digest()], FailureCode.CUT_SHORT, "39 of 40 bytes"),
    "only a header": ([header()], FailureCode.CUT_SHORT, "0 of 40 bytes"),
    "only a header and a digest": ([header(), digest()], FailureCode.CUT_SHORT, "0 of 40 bytes"),
    "no digest": ([header(), data(BYTES)], FailureCode.CUT_SHORT, "and no digest"),
    "a byte too much": ([header(), data(BYTES), data(b"!")], FailureCode.TOO_LONG, "more than the announced 40"),
    "too much at once": ([header(), data(BYTES + b"!")], FailureCode.TOO_LONG, "more than the announced 40"),
    "other bytes": ([header(), data(BYTES[::-1]), digest()], FailureCode.WRONG_DIGEST, "announced digest"),
    "an empty digest": ([header(), data(BYTES), digest(b"")], FailureCode.WRONG_DIGEST, "announced digest"),
    "a shortened digest": (
        [header(), data(BYTES), digest(WEIGHTS.digest[:8])],
        FailureCode.WRONG_DIGEST,
        "announced digest",
    ),
    "another size": ([header(size=48), data(BYTES)], FailureCode.WRONG_SHAPES, "announces 48 bytes, its tensors have"),
    "a size of nothing": ([header(size=0), data(BYTES)], FailureCode.WRONG_SHAPES, "announces 0 bytes"),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_a_fetch_refuses(name: str) -> None:
    chunks, code, text = BAD_STREAMS[name]
    failure = await answer_to(chunks)
    assert failure.code is code
    assert text in failure.detail


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_an_upload_refuses(name: str) -> None:
    chunks, code, text = BAD_STREAMS[name]
    told, store = await answer_to_upload(chunks)
    assert told.startswith(code.name.lower())
    assert text in told
    assert len(store) == 0


async def test_a_fetch_refuses_values_that_are_not_finite() -> None:
    chunks = [header(NAN.tensors, size=8), data(NAN.buffer.tobytes()), digest(NAN.digest)]
    failure = await answer_to(chunks, expected=vector(1))
    assert failure.code is FailureCode.NOT_FINITE


async def test_an_upload_refuses_values_that_are_not_finite_and_its_sender_is_told() -> None:
    store = ModelStore()
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        failure = await refused(upload(served.channel, "m", NAN))
    assert failure.code is FailureCode.BAD_STREAM
    assert "not_finite: tensor 'w'" in failure.detail
    assert len(store) == 0


@pytest.mark.parametrize(
    "tensors",
    [
        (*TENSORS[:2], dataclasses.replace(TENSORS[2], dtype="float64")),
        (*TENSORS[:2], dataclasses.replace(TENSORS[2], trainable=True)),
        TENSORS[:2],
        (),
        TENSORS[::-1],
    ],
)
async def test_a_fetch_refuses_other_tensors_than_expected(tensors: tuple[TensorSpec, ...]) -> None:
    failure = await answer_to([header(tensors), data(BYTES)])
    assert failure.code is FailureCode.WRONG_SHAPES
    assert "expected" in failure.detail


# --- headers that announce what nobody may allocate

HUGE: dict[str, tuple[tuple[TensorSpec, ...], int, FailureCode]] = {
    "2^60 bytes": (vector(2**58), 2**60, FailureCode.TOO_LONG),
    "more than is taken": (vector(2**28), 2**30, FailureCode.TOO_LONG),
    "a product that overflows to 0": ((TensorSpec("w", "float32", (2**32, 2**32)),), 0, FailureCode.WRONG_SHAPES),
    "a product that overflows to 4": ((TensorSpec("w", "int8", (2**62 + 1, 4)),), 4, FailureCode.WRONG_SHAPES),
    "an empty axis beside a huge one": ((TensorSpec("w", "int8", (0, 2**63)),), 0, FailureCode.WRONG_SHAPES),
    "65 axes": ((TensorSpec("w", "int8", (1,) * 65),), 8, FailureCode.WRONG_SHAPES),
    "many axes": ((TensorSpec("w", "int8", (2**63,) * 50_000),), 8, FailureCode.WRONG_SHAPES),
    "a name twice": (vector(1) * 2, 16, FailureCode.WRONG_SHAPES),
    "objects": ((TensorSpec("w", "object", (1,)),), 8, FailureCode.WRONG_SHAPES),
    "another dtype": ((TensorSpec("w", "complex128", (1,)),), 16, FailureCode.WRONG_SHAPES),
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("way", ["fetch", "upload"])
async def test_nothing_is_allocated_for(name: str, way: str) -> None:
    tensors, size, code = HUGE[name]
    chunks = [header(tensors, size=size), data(b"12345678")]
    tracemalloc.start()
    try:
        if way == "fetch":
            failure = await answer_to(chunks, expected=None, max_bytes=10_000_000)
            said = f"{failure.code.name.lower()}: {failure.detail}"
        else:
            said, store = await answer_to_upload(chunks, max_bytes=lambda: 10_000_000)
            assert len(store) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said.startswith(code.name.lower())
    assert peak < 100_000_000


async def test_a_model_of_too_many_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_streams, "MAX_TENSORS", 2)
    failure = await answer_to([header(), data(BYTES)], expected=None)
    assert failure == Failure(FailureCode.WRONG_SHAPES, "model 'm' has 3 tensors")


async def test_a_manager_that_expects_no_model_takes_none() -> None:
    told, _ = await answer_to_upload([header(), data(BYTES)], max_bytes=lambda: 0)
    assert told == "too_long: model 'm' has 40 bytes, at most 0 are taken"


async def test_a_model_for_which_there_is_no_memory_is_refused() -> None:
    def full(_: int) -> np.ndarray:
        raise OSError("Cannot allocate memory")

    failure = await answer_to([header(), data(BYTES), digest()], make_room=full)
    assert failure == Failure(FailureCode.NO_ROOM, "model 'm' has 40 bytes, for which there is no memory")
