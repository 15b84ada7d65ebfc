"""Transfer of weights: the service of a process that holds models, and the two calls of its peers."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from fedgsp import model_streams
from fedgsp.access import Caller, caller, shown
from fedgsp.addresses import is_near
from fedgsp.bases import Bases
from fedgsp.channels import describe, refuse
from fedgsp.landing import Landing
from fedgsp.limits.gate import host_of, peer_of
from fedgsp.limits.turns import Turns
from fedgsp.memory import room
from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.model_store import ModelStore
from fedgsp.model_streams import chunks_of, received
from fedgsp.names import is_text
from fedgsp.pacing import Pace, Way, Ways
from fedgsp.seldom import SeldomLog
from fedgsp.spill import Room
from fedgsp.v1 import model_pb2
from fedgsp.weights import Weights, WeightsError, require
from fedgsp.windows import is_here, machine

#: Longest wait for a promised model. The group manager watches the chain and cancels it long before.
PROMISE_TIMEOUT_S = 24 * 3600.0
#: A holder that has not taken the question for a model after so many seconds cannot be reached.
ASK_TIMEOUT_S = 30.0
#: Time in which a reader must take each chunk of a model that this process still holds, in seconds. Once the model is
#: released, so much time is left for all the rest: a reader must not keep a model in memory that nobody needs.
TAKE_TIMEOUT_S = 60.0
#: Most calls at once for one model and one caller. A node fetches a model once, unless it lost its connection.
MOST_FETCHES, MOST_UPLOADS = 8, 1

#: A reader says so often, in seconds, that it is still there: before its holder would ask, whatever `--lost-after` is.
SIGN_S = 0.25

logger = logging.getLogger(__name__)

_SERVICE = "fedgsp.v1.ModelService"


class ModelServicer:
    """Serves the models of a store, each only to callers with a ticket for it.

    `wanted(id)` is called before a model is served: a group manager then asks the holder for it, if it is not there.
    `may_upload(id)` tells whether an upload of that id is expected. Uploads have at most `max_bytes()` bytes. They go
    to the `landing(id)` or, if there is none, into the store.
    `served(id, caller, bytes)` is told of every model that a caller got. With `bases`, models may travel coded.
    """

    def __init__(
        self,
        store: ModelStore,
        wanted: Callable[[str], Awaitable[None]] | None = None,
        may_upload: Callable[[str], bool] = lambda _: False,
        max_bytes: Callable[[], int] = lambda: 0,
        make_room: Room = room,
        served: Callable[[str, Caller, int], None] = lambda *_: None,
        bases: Bases | None = None,
        landing: Callable[[str], Landing | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._landing = landing
        self._bases = bases
        self._served = served
        self._wanted = wanted
        self._may_upload = may_upload
        self._max_bytes = max_bytes
        self._make_room = make_room
        self._fetches, self._uploads = Turns(MOST_FETCHES), Turns(MOST_UPLOADS)
        self._ways = Ways()
        self._not_given = SeldomLog(logger, logging.INFO, "request")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service at a server."""
        methods = {
            "Fetch": grpc.stream_stream_rpc_method_handler(self.Fetch, model_pb2.FetchRequest.FromString),
            "Upload": grpc.stream_stream_rpc_method_handler(
                self.Upload, response_serializer=model_pb2.Receipt.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))

    async def Fetch(  # noqa: N802
        self, requests: AsyncIterator[model_pb2.FetchRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Stream a model as soon as it is there."""
        stream = aiter(requests)
        request = await anext(stream, model_pb2.FetchRequest())
        if not is_text(request.model_id):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the first request names no model")
        if not caller().may(request.model_id):
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, "the ticket is for another model")

        model_id, loop = request.model_id, asyncio.get_running_loop()

        async def receipt() -> int | None:
            while (answer := await anext(stream, request)) is not request:
                if answer.HasField("receipt"):
                    return _said(answer.receipt)
                if answer.model_id:
                    break
            raise WeightsError(FailureCode.BAD_STREAM, "no receipt came for what was sent")

        with self._fetches.of((_who(), model_id)):
            try:
                if self._wanted is not None:
                    await self._wanted(model_id)
                weights = await self._store.get(model_id)
            except WeightsError as error:
                # The reason may name nodes and clients. A caller may be a stranger, who guesses ids.
                self._not_given.line(f"model={model_id[:100]!r} was not given: {error}")
                code = error.failure.code.name.lower()
                await refuse(context, grpc.StatusCode.NOT_FOUND, f"{code}: this process cannot give that model")
            way = self._ways.to(peer_of(context), is_near(host_of(context.peer())))
            pace = Pace(way, receipt, model_streams.CHUNK_TIMEOUT_S)
            try:
                async with pace, asyncio.timeout(TAKE_TIMEOUT_S) as limit:
                    async for chunk in chunks_of(model_id, weights, pace, is_here(request.machine), self._bases):
                        if model_id in self._store:
                            limit.reschedule(loop.time() + TAKE_TIMEOUT_S)
                        yield chunk
                    # Now, because the reader goes as soon as it has the model.
                    self._served(model_id, caller(), weights.buffer.nbytes)
                    with contextlib.suppress(WeightsError):  # a reader that has everything need not confirm it
                        await pace.settled()
                return
            except TimeoutError:
                pass  # told below, where no traceback holds the model
            except WeightsError as error:
                await refuse(context, grpc.StatusCode.ABORTED, str(error), stream)
            del weights
            await refuse(context, grpc.StatusCode.ABORTED, "the model was not taken in time")

    async def Upload(  # noqa: N802
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """Receive a model that this process waits for."""

        sender, coming = caller(), ""
        landing: Landing | None = None

        def wanted(model_id: str) -> bool:
            nonlocal coming
            coming = model_id
            return sender.may(model_id) and self._may_upload(model_id)

        def landing_of(model_id: str) -> Landing | None:
            nonlocal landing
            landing = self._landing(model_id)
            return landing

        def still_wanted() -> None:
            # If the reader has gone meanwhile, nobody would release the model.
            require(wanted(coming), FailureCode.CANCELLED, f"model {coming!r} is not wanted any more")

        async def send_receipt(base: int | None) -> None:
            await context.write(_receipt(base))

        try:
            with self._uploads.of((_who(), sender.asks)):
                ref, weights = await received(
                    requests,
                    None,
                    self._max_bytes(),
                    wanted,
                    model_streams.CHUNK_TIMEOUT_S,
                    send_receipt,
                    still_wanted,
                    self._make_room,
                    self._bases,
                    landing_of,
                )
                still_wanted()
                if landing:
                    landing.came = weights
                else:
                    self._store.put(ref.id, weights)
        except WeightsError as error:
            # A slow link or a cancelled wait says nothing against the model.
            blameless = error.failure.code in (FailureCode.STALLED, FailureCode.CANCELLED)
            await refuse(
                context,
                grpc.StatusCode.ABORTED if blameless else grpc.StatusCode.INVALID_ARGUMENT,
                str(error),
                aiter(requests),
            )


def _said(receipt: model_pb2.Receipt) -> int | None:
    """The number of the base that a receipt chooses; None if it refuses."""
    return None if receipt.refused else receipt.base


def _receipt(base: int | None) -> model_pb2.Receipt:
    """The inverse of `_said`."""
    return model_pb2.Receipt(refused=base is None, base=base or 0)


def _who() -> str:
    return str(caller().reader or caller().proven)


async def fetch(
    channel: grpc.aio.Channel,
    model_id: str,
    expected: tuple[TensorSpec, ...] | None,
    max_bytes: int,
    on_chunk: Callable[[], None] = lambda: None,
    make_room: Room = room,
    promised: bool = True,
    ticket: bytes = b"",
    digest: bytes = b"",
    bases: Bases | None = None,
) -> Weights:
    """Fetch a model from its holder. A `promised` model may not exist yet; any other model must come at once.

    `ticket` allows it. If `digest` is given, the model must have this digest, whatever its holder announces. The model
    may travel coded against one of `bases`.

    Raises WeightsError if the model cannot be fetched, has other tensors than `expected` or more than `max_bytes`, is
    cut short, has another digest than announced, or holds values that are not finite.
    """
    call = channel.stream_stream(f"/{_SERVICE}/Fetch", model_pb2.FetchRequest.SerializeToString)(
        timeout=PROMISE_TIMEOUT_S, metadata=shown(ticket)
    )

    answers = _Answers(call)
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            await _write_first(call, model_pb2.FetchRequest(model_id=model_id, machine=machine()))
        _, weights = await received(
            call,
            expected,
            max_bytes,
            lambda found: found == model_id,
            None if promised else model_streams.CHUNK_TIMEOUT_S,
            answers.receipt,
            on_chunk,
            make_room,
            bases,
        )
    except TimeoutError:
        raise WeightsError(FailureCode.UNREACHABLE, f"nobody took the question for model {model_id!r}") from None
    except grpc.aio.AioRpcError as error:
        unknown = error.code() == grpc.StatusCode.NOT_FOUND
        raise WeightsError(
            FailureCode.NO_SUCH_MODEL if unknown else FailureCode.UNREACHABLE, describe(error)
        ) from error
    except asyncio.CancelledError:
        _check_not_closed()
        raise
    finally:
        answers.end()
        call.cancel()
    require(
        digest in (b"", weights.digest),
        FailureCode.WRONG_DIGEST,
        f"model {model_id!r} is not the model that its maker reported",
    )
    return weights


class _Answers:
    """What a reader says to a holder while chunks come: receipts, and signs that it is still there.

    If a packet is lost on a slow link, no chunk comes for seconds. A holder that hears nothing sends a ping, whose
    answer comes no sooner; it would take its reader for lost.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._one_by_one = asyncio.Lock()
        self._signs: asyncio.Task[None] | None = None

    async def receipt(self, base: int | None) -> None:
        """Confirms a chunk, chooses a base, or refuses a window or a code."""
        if self._signs is None:
            self._signs = asyncio.create_task(self._give_signs())
        await self._say(model_pb2.FetchRequest(receipt=_receipt(base)))

    async def _give_signs(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while True:
                await asyncio.sleep(SIGN_S)
                await self._say(model_pb2.FetchRequest())

    async def _say(self, request: model_pb2.FetchRequest) -> None:
        async with self._one_by_one:
            await _write(self._call, request)

    def end(self) -> None:
        """The transfer is over."""
        if self._signs is not None:
            self._signs.cancel()


async def upload(
    channel: grpc.aio.Channel,
    model_id: str,
    weights: Weights,
    on_chunk: Callable[[], None] = lambda: None,
    receiver: str = "",
    ticket: bytes = b"",
    way: Way | None = None,
    bases: Bases | None = None,
) -> None:
    """Upload a model to the process that asked for it, and gave the `ticket`; raises WeightsError.

    The receiver ends the call if no chunk comes. `receiver` is the machine of the receiver, if known, and `way` what
    earlier uploads have found about the link. The model may travel coded against one of `bases`.
    """
    call = channel.stream_stream(f"/{_SERVICE}/Upload", response_deserializer=model_pb2.Receipt.FromString)(
        metadata=shown(ticket)
    )

    async def receipt() -> int | None:
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise await _end(call)
        require(
            answer is not None,  # gRPC's sign for a message that cannot be decoded
            FailureCode.BAD_STREAM,
            f"model {model_id!r}: its receiver sent what is no receipt",
        )
        return _said(answer)

    pace = Pace(way or Way(), receipt, model_streams.CHUNK_TIMEOUT_S)
    try:
        async with pace:
            write = _write_first
            async for message in chunks_of(model_id, weights, pace, is_here(receiver), bases):
                await write(call, message)
                write = _write
                on_chunk()
            await call.done_writing()
            await pace.settled()
        require(
            await call.read() is grpc.aio.EOF,
            FailureCode.BAD_STREAM,
            f"model {model_id!r}: its receiver sent one receipt too many",
        )
    except grpc.aio.AioRpcError as error:
        refused = error.code() == grpc.StatusCode.INVALID_ARGUMENT
        raise WeightsError(FailureCode.BAD_STREAM if refused else FailureCode.UNREACHABLE, describe(error)) from error
    except asyncio.CancelledError:
        _check_not_closed()
        raise
    finally:
        call.cancel()


def _check_not_closed() -> None:
    """Raises WeightsError if a call was cancelled and its task was not: then this process has closed the channel."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise WeightsError(FailureCode.UNREACHABLE, "the connection was lost") from None


async def _write_first(call: Any, message: Any) -> None:
    """Writes the first message of a call.

    gRPC itself waits for ever with the first message of a call if its channel is closed before the call is on its way.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    call.add_done_callback(end)
    writing = asyncio.ensure_future(_write(call, message))
    try:
        await asyncio.wait({writing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            raise await _end(call)
        await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(call: Any, message: Any) -> None:
    try:
        await call.write(message)
    except asyncio.InvalidStateError:  # the call has ended
        raise await _end(call) from None


async def _end(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )
