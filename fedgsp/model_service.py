"""Moves weights: the service that a holder offers, and the two calls that its peers make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import grpc
import grpc.aio

from fedgsp import wire
from fedgsp.channels import describe, refuse
from fedgsp.messages import FailureCode, ModelHeader, ModelRef, TensorSpec
from fedgsp.model_store import ModelStore
from fedgsp.v1 import model_pb2, model_pb2_grpc
from fedgsp.weights import Weights, WeightsError, check_finite, check_same_tensors, room, total_bytes

CHUNK_BYTES = 1024 * 1024
#: Longest silence inside a stream of chunks.
CHUNK_TIMEOUT_S = 30.0
#: Longest wait for a promised model; its chain is watched, and cancelled, by the manager long before.
PROMISE_TIMEOUT_S = 24 * 3600.0
#: Tensors a header may name; more do not fit its message anyway.
MAX_TENSORS = 20_000


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Serves the models of a store.

    `wanted(id)` is called before waiting for a model that is not there (a manager then asks its holder for it);
    `may_upload(id)` says whether an upload of that id is expected.
    """

    def __init__(
        self,
        store: ModelStore,
        wanted: Callable[[str], Awaitable[None]] | None = None,
        may_upload: Callable[[str], bool] = lambda _: False,
        max_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._may_upload = may_upload
        self._max_bytes = max_bytes

    async def Fetch(  # noqa: N802
        self, request: model_pb2.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[model_pb2.Chunk]:
        """Streams a model once it is there."""
        try:
            if request.model_id not in self._store and self._wanted is not None:
                await self._wanted(request.model_id)
            weights = await self._store.get(request.model_id)
        except WeightsError as error:
            await refuse(context, grpc.StatusCode.NOT_FOUND, str(error))
        digest = await asyncio.to_thread(lambda: weights.digest)
        for chunk in _chunks(ModelRef(request.model_id, weights.buffer.nbytes, digest), weights):
            yield chunk

    async def Upload(  # noqa: N802
        self, requests: AsyncIterator[model_pb2.Chunk], context: grpc.aio.ServicerContext
    ) -> model_pb2.UploadResponse:
        """Takes a model that this process asked for."""
        try:
            ref, weights = await _receive(requests, None, self._max_bytes(), self._may_upload, CHUNK_TIMEOUT_S)
            if not self._may_upload(ref.id):  # whoever asked has gone meanwhile: nobody would ever release it
                raise WeightsError(FailureCode.CANCELLED, f"model {ref.id!r} is not wanted any more")
        except WeightsError as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._store.put(ref.id, weights)
        return model_pb2.UploadResponse()


async def fetch(
    channel: grpc.aio.Channel,
    model_id: str,
    expected: tuple[TensorSpec, ...] | None,
    max_bytes: int,
    on_chunk: Callable[[], None] = lambda: None,
) -> Weights:
    """Fetches a model from its holder, waiting for a promised one; raises WeightsError.

    Weights of other tensors than `expected`, of more than `max_bytes`, cut short, with another digest than announced
    or with values that are not finite are refused.
    """
    call = model_pb2_grpc.ModelServiceStub(channel).Fetch(
        model_pb2.FetchRequest(model_id=model_id), timeout=PROMISE_TIMEOUT_S
    )
    try:
        _, weights = await _receive(call, expected, max_bytes, lambda found: found == model_id, None, on_chunk)
    except grpc.aio.AioRpcError as error:
        known = grpc.StatusCode.NOT_FOUND
        code = FailureCode.NO_SUCH_MODEL if error.code() == known else FailureCode.UNREACHABLE
        raise WeightsError(code, describe(error)) from error
    finally:
        call.cancel()
    return weights


async def upload(channel: grpc.aio.Channel, model_id: str, weights: Weights, timeout_s: float) -> None:
    """Uploads a model to the process that asked for it; raises WeightsError."""
    digest = await asyncio.to_thread(lambda: weights.digest)

    async def chunks() -> AsyncIterator[model_pb2.Chunk]:
        for chunk in _chunks(ModelRef(model_id, weights.buffer.nbytes, digest), weights):
            yield chunk

    try:
        await model_pb2_grpc.ModelServiceStub(channel).Upload(chunks(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        refused = error.code() == grpc.StatusCode.INVALID_ARGUMENT
        raise WeightsError(FailureCode.BAD_STREAM if refused else FailureCode.UNREACHABLE, describe(error)) from error


def _chunks(ref: ModelRef, weights: Weights) -> Iterator[model_pb2.Chunk]:
    yield model_pb2.Chunk(header=wire.encode(ModelHeader(ref, weights.tensors)))
    view = weights.buffer.data
    for offset in range(0, len(view), CHUNK_BYTES):
        yield model_pb2.Chunk(data=bytes(view[offset : offset + CHUNK_BYTES]))


async def _receive(
    chunks: AsyncIterator[model_pb2.Chunk],
    expected: tuple[TensorSpec, ...] | None,
    max_bytes: int,
    accept: Callable[[str], bool],
    header_timeout_s: float | None,
    on_chunk: Callable[[], None] = lambda: None,
) -> tuple[ModelRef, Weights]:
    stream = aiter(chunks)
    first = await _next(stream, "a model", header_timeout_s)
    if first is None or first.WhichOneof("part") != "header":
        raise WeightsError(FailureCode.BAD_STREAM, "the stream does not begin with a header")
    header = wire.decode(ModelHeader, first.header)
    ref = header.ref
    if ref is None or not accept(ref.id):
        raise WeightsError(FailureCode.BAD_STREAM, f"model {ref.id if ref else ''!r} was not asked for")
    if expected is not None:
        check_same_tensors(header.tensors, expected, f"model {ref.id!r}")
    if len(header.tensors) > MAX_TENSORS:
        raise WeightsError(FailureCode.WRONG_SHAPES, f"model {ref.id!r} has {len(header.tensors)} tensors")
    size = total_bytes(header.tensors)
    if size != ref.size:
        raise WeightsError(
            FailureCode.WRONG_SHAPES, f"model {ref.id!r} announces {ref.size} bytes, its tensors have {size}"
        )
    if size > max_bytes:
        raise WeightsError(FailureCode.TOO_LONG, f"model {ref.id!r} has {size} bytes, at most {max_bytes} are taken")
    weights = Weights(header.tensors, room(size))
    view, filled = weights.buffer.data, 0
    while True:
        chunk = await _next(stream, f"model {ref.id!r}", CHUNK_TIMEOUT_S)
        if chunk is None:
            break
        if not chunk.data:  # a second header; or nothing, which could go on forever
            raise WeightsError(FailureCode.BAD_STREAM, f"model {ref.id!r}: a chunk after the header holds no bytes")
        end = filled + len(chunk.data)
        if end > size:
            raise WeightsError(FailureCode.TOO_LONG, f"model {ref.id!r}: more than the announced {size} bytes came")
        view[filled:end] = chunk.data
        filled = end
        on_chunk()
    if filled < size:
        raise WeightsError(FailureCode.CUT_SHORT, f"model {ref.id!r}: {filled} of {size} bytes came")
    await asyncio.to_thread(_verify, ref, weights)
    return ref, weights


async def _next(stream: AsyncIterator[model_pb2.Chunk], what: str, timeout_s: float | None) -> model_pb2.Chunk | None:
    try:
        return await asyncio.wait_for(anext(stream, None), timeout_s)
    except TimeoutError:
        raise WeightsError(FailureCode.STALLED, f"no chunk of {what} for {timeout_s:.0f} s") from None


def _verify(ref: ModelRef, weights: Weights) -> None:
    if weights.digest != ref.digest:
        raise WeightsError(FailureCode.WRONG_DIGEST, f"model {ref.id!r}: the bytes do not have the announced sha256")
    check_finite(weights)
