"""Moves weights: the service that a holder offers, and the two calls that its peers make.

gRPC is given the bytes of the messages: see `chunks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
from xxhash import xxh3_128

from fedgsp import chunks
from fedgsp.channels import describe, refuse
from fedgsp.encoding import BFLOAT16, ENCODINGS, Decoder, encoded, wire_bytes
from fedgsp.memory import room
from fedgsp.messages import FailureCode, ModelHeader, ModelRef, TensorSpec
from fedgsp.model_store import ModelStore
from fedgsp.spill import Room, let_go
from fedgsp.v1 import model_pb2
from fedgsp.weights import Finiteness, Weights, WeightsError, check_same_tensors, total_bytes

CHUNK_BYTES = 512 * 1024
#: Longest silence inside a stream of chunks.
CHUNK_TIMEOUT_S = 30.0
#: Longest wait for a promised model; its chain is watched, and cancelled, by the manager long before.
PROMISE_TIMEOUT_S = 24 * 3600.0
#: Tensors a header may name; more do not fit its message anyway.
MAX_TENSORS = 20_000


_SERVICE = "fedgsp.v1.ModelService"


class ModelServicer:
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
        make_room: Room = room,
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._may_upload = may_upload
        self._max_bytes = max_bytes
        self._make_room = make_room

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offers the service."""
        fetch = grpc.unary_stream_rpc_method_handler(self.Fetch, model_pb2.FetchRequest.FromString)
        upload = grpc.stream_unary_rpc_method_handler(
            self.Upload, response_serializer=model_pb2.UploadResponse.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler(_SERVICE, {"Fetch": fetch, "Upload": upload})
        server.add_generic_rpc_handlers((handler,))

    async def Fetch(  # noqa: N802
        self, request: model_pb2.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Streams a model once it is there."""
        try:
            if request.model_id not in self._store and self._wanted is not None:
                await self._wanted(request.model_id)
            weights = await self._store.get(request.model_id)
        except WeightsError as error:
            await refuse(context, grpc.StatusCode.NOT_FOUND, str(error))
        async for chunk in _chunks(request.model_id, weights):
            yield chunk

    async def Upload(  # noqa: N802
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> model_pb2.UploadResponse:
        """Takes a model that this process asked for."""
        try:
            ref, weights = await _receive(
                requests, None, self._max_bytes(), self._may_upload, CHUNK_TIMEOUT_S, make_room=self._make_room
            )
            if not self._may_upload(ref.id):  # whoever asked has gone meanwhile: nobody would ever release it
                raise WeightsError(FailureCode.CANCELLED, f"model {ref.id!r} is not wanted any more")
        except WeightsError as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error), aiter(requests))
        self._store.put(ref.id, weights)
        return model_pb2.UploadResponse()


async def fetch(
    channel: grpc.aio.Channel,
    model_id: str,
    expected: tuple[TensorSpec, ...] | None,
    max_bytes: int,
    on_chunk: Callable[[], None] = lambda: None,
    make_room: Room = room,
    promised: bool = True,
) -> Weights:
    """Fetches a model from its holder; raises WeightsError. One that is not only `promised` has to come at once.

    Weights of other tensors than `expected`, of more than `max_bytes`, cut short, with another digest than announced
    or with values that are not finite are refused.
    """
    call = channel.unary_stream(f"/{_SERVICE}/Fetch", model_pb2.FetchRequest.SerializeToString)(
        model_pb2.FetchRequest(model_id=model_id), timeout=PROMISE_TIMEOUT_S
    )
    try:
        _, weights = await _receive(
            call,
            expected,
            max_bytes,
            lambda found: found == model_id,
            None if promised else CHUNK_TIMEOUT_S,
            on_chunk,
            make_room,
        )
    except grpc.aio.AioRpcError as error:
        known = grpc.StatusCode.NOT_FOUND
        code = FailureCode.NO_SUCH_MODEL if error.code() == known else FailureCode.UNREACHABLE
        raise WeightsError(code, describe(error)) from error
    finally:
        call.cancel()
    return weights


async def upload(
    channel: grpc.aio.Channel,
    model_id: str,
    weights: Weights,
    on_chunk: Callable[[], None] = lambda: None,
) -> None:
    """Uploads a model to the process that asked for it, which ends this when no chunk comes; raises WeightsError."""
    call = channel.stream_unary(f"/{_SERVICE}/Upload", response_deserializer=model_pb2.UploadResponse.FromString)
    try:
        await call(_told(_chunks(model_id, weights), on_chunk))
    except grpc.aio.AioRpcError as error:
        refused = error.code() == grpc.StatusCode.INVALID_ARGUMENT
        raise WeightsError(FailureCode.BAD_STREAM if refused else FailureCode.UNREACHABLE, describe(error)) from error


async def _told(messages: AsyncIterator[bytes], on_chunk: Callable[[], None]) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message
        on_chunk()


async def _chunks(model_id: str, weights: Weights) -> AsyncIterator[bytes]:
    encoding, hasher = BFLOAT16 if weights.bfloat16 else "", xxh3_128()
    yield chunks.header(ModelHeader(ModelRef(model_id, weights.buffer.nbytes), weights.tensors, encoding))
    for piece, stream in encoded(weights, CHUNK_BYTES):
        if weights.known_digest is None:
            hasher.update(piece)
        yield chunks.data(stream)
    if weights.known_digest is None:
        weights.known_digest = hasher.digest()
    yield chunks.digest(weights.known_digest)


async def _receive(
    messages: AsyncIterator[bytes],
    expected: tuple[TensorSpec, ...] | None,
    max_bytes: int,
    accept: Callable[[str], bool],
    header_timeout_s: float | None,
    on_chunk: Callable[[], None] = lambda: None,
    make_room: Room = room,
) -> tuple[ModelRef, Weights]:
    stream = aiter(messages)
    header = await _next(stream, "a model", header_timeout_s)
    if not isinstance(header, ModelHeader):
        raise WeightsError(FailureCode.BAD_STREAM, "the stream does not begin with a header")
    ref = header.ref
    if ref is None or not accept(ref.id):
        raise WeightsError(FailureCode.BAD_STREAM, f"model {ref.id if ref else ''!r} was not asked for")
    what = f"model {ref.id!r}"
    _check_header(what, header, ref.size, expected, max_bytes)
    bfloat16 = header.encoding == BFLOAT16
    try:
        weights = Weights(header.tensors, make_room(ref.size), bfloat16=bfloat16)
    except (OSError, MemoryError):
        raise WeightsError(
            FailureCode.TOO_LONG, f"{what} has {ref.size} bytes, for which there is no memory"
        ) from None
    finiteness, hasher, filled = Finiteness(weights), xxh3_128(), 0
    decoder, size = Decoder(weights.buffer, header.tensors, bfloat16), wire_bytes(header.tensors, bfloat16)
    while not isinstance(part := await _next(stream, what, CHUNK_TIMEOUT_S), chunks.Digest):
        if part is None:
            raise WeightsError(FailureCode.CUT_SHORT, f"{what}: {filled} of {size} bytes came, and no digest")
        if not isinstance(part, memoryview) or not part:  # a second header; or nothing, which could go on forever
            raise WeightsError(FailureCode.BAD_STREAM, f"{what}: a chunk after the header holds no bytes")
        end = filled + len(part)
        if end > size:
            raise WeightsError(FailureCode.TOO_LONG, f"{what}: more than the announced {size} bytes came")
        try:
            came = decoder.put(part)
        except ValueError as error:
            raise WeightsError(FailureCode.BAD_STREAM, f"{what}: {error}") from None
        hasher.update(came.data)  # while it is in the cache
        finiteness.filled_to(decoder.filled)
        let_go(came)
        filled = end
        on_chunk()
    if filled < size:
        raise WeightsError(FailureCode.CUT_SHORT, f"{what}: {filled} of {size} bytes came")
    if part.value != hasher.digest():
        raise WeightsError(FailureCode.WRONG_DIGEST, f"{what}: the bytes do not have the announced digest")
    finiteness.check()
    weights.known_digest = part.value
    return ref, weights


def _check_header(
    what: str, header: ModelHeader, size: int, expected: tuple[TensorSpec, ...] | None, max_bytes: int
) -> None:
    """Before a byte is allocated."""
    if expected is not None:
        check_same_tensors(header.tensors, expected, what)
    if len(header.tensors) > MAX_TENSORS:
        raise WeightsError(FailureCode.WRONG_SHAPES, f"{what} has {len(header.tensors)} tensors")
    if total_bytes(header.tensors) != size:
        found = total_bytes(header.tensors)
        raise WeightsError(FailureCode.WRONG_SHAPES, f"{what} announces {size} bytes, its tensors have {found}")
    if size > max_bytes:
        raise WeightsError(FailureCode.TOO_LONG, f"{what} has {size} bytes, at most {max_bytes} are taken")
    if header.encoding not in ENCODINGS:
        raise WeightsError(FailureCode.BAD_STREAM, f"{what} has the unknown encoding {header.encoding[:40]!r}")


async def _next(stream: AsyncIterator[bytes], what: str, timeout_s: float | None) -> chunks.Part | None:
    try:
        async with asyncio.timeout(timeout_s):
            message = await anext(stream, None)
        return None if message is None else chunks.read(message)
    except TimeoutError:
        raise WeightsError(FailureCode.STALLED, f"no chunk of {what} for {timeout_s:.0f} s") from None
    except ValueError as error:
        raise WeightsError(FailureCode.BAD_STREAM, f"{what}: {error}") from None
