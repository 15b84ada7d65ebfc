"""Holders of models, good and bad, and what becomes of those who deal with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import Failure, ModelHeader, ModelRef, TensorSpec
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import model_pb2, model_pb2_grpc
from tests.support.serving import serving
from tests.support.weights import TENSORS, some_weights

PLENTY = 2**40
WEIGHTS = some_weights()
BYTES = WEIGHTS.buffer.tobytes()


def registered(servicer: model_pb2_grpc.ModelServiceServicer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: model_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)


def serving_store(store: ModelStore, **options: Any) -> Any:
    return serving(ModelServicer(store, **options).add_to)


def header(
    tensors: tuple[TensorSpec, ...] = TENSORS, model_id: str = "m", size: int = 40, encoding: str = ""
) -> model_pb2.Chunk:
    return model_pb2.Chunk(header=wire.encode(ModelHeader(ModelRef(model_id, size), tensors, encoding)))


def data(content: bytes) -> model_pb2.Chunk:
    return model_pb2.Chunk(data=content)


def digest(value: bytes = WEIGHTS.digest) -> model_pb2.Chunk:
    return model_pb2.Chunk(digest=value)


class Says(model_pb2_grpc.ModelServiceServicer):
    """Answers every fetch with these chunks, and then ends, says nothing more, or goes on forever."""

    def __init__(self, chunks: Iterable[Any], then: str = "end") -> None:
        self.chunks = list(chunks)
        self.then = then
        self.said = asyncio.Event()
        self.cancelled = asyncio.Event()

    def Upload(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        raise AssertionError("nothing is uploaded here")

    async def Fetch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await anext(requests)  # a call that ends before it is asked breaks the asking
        for chunk in self.chunks:
            yield chunk
        self.said.set()
        try:
            while self.then == "repeat":
                yield self.chunks[-1]
            if self.then == "silence":
                await asyncio.Event().wait()
        finally:
            self.cancelled.set()


async def refused(call: Awaitable[Any]) -> Failure:
    with pytest.raises(WeightsError) as caught:
        await call
    return caught.value.failure


async def answer_to(chunks: Iterable[model_pb2.Chunk], then: str = "end", **options: Any) -> Failure:
    """Why a fetch from somebody who says these chunks is refused."""
    options = {"expected": TENSORS, "max_bytes": PLENTY, **options}
    async with serving(registered(Says(chunks, then))) as served:
        return await refused(fetch(served.channel, "m", **options))


async def answer_to_upload(
    chunks: Iterable[model_pb2.Chunk] | AsyncIterator[model_pb2.Chunk],
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    **options: Any,
) -> tuple[str, ModelStore]:
    """What the uploader of these chunks is told, with this code, and the store that refused them."""
    store = ModelStore()
    options = {"may_upload": lambda model_id: model_id == "m", "max_bytes": lambda: PLENTY, **options}
    async with serving_store(store, **options) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await model_pb2_grpc.ModelServiceStub(served.channel).Upload(chunks).read()
        assert caught.value.code() is code
        return caught.value.details() or "", store
