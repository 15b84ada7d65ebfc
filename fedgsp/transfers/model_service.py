"""The service of a process that holds models. Its peers call it by `model_calls`."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc.aio

from fedgsp.connections.addresses import is_near
from fedgsp.connections.channels import refuse
from fedgsp.limits.gate import host_of, peer_of
from fedgsp.limits.turns import Turns
from fedgsp.messages import Failure, FailureCode
from fedgsp.names import is_text
from fedgsp.security.access import Caller, caller
from fedgsp.seldom import SeldomLog
from fedgsp.tensors.memory import room
from fedgsp.tensors.spill import Room
from fedgsp.tensors.weights import WeightsError, require
from fedgsp.transfers import chunks, stalls
from fedgsp.transfers.answers import Answers
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.landing import Landing
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.model_streams import TensorsOf, chunks_of, received
from fedgsp.transfers.pacing import Pace, Ways
from fedgsp.transfers.pipes import is_here
from fedgsp.v1 import model_pb2

#: Time in which a reader must take each chunk of a model that this process still holds, in seconds. Once the model is
#: released, so much time is left for all the rest: a reader must not keep a model in memory that nobody needs.
TAKE_TIMEOUT_S = 60.0
#: Most calls at once for one model and one caller. A node fetches a model once, unless it lost its connection.
MOST_FETCHES, MOST_UPLOADS = 8, 1
#: Failures that do not show that the model or its sender is bad: a slow link, a cancelled wait, a full receiver.
_BLAMELESS = (FailureCode.STALLED, FailureCode.CANCELLED, FailureCode.NO_ROOM)

logger = logging.getLogger(__name__)


class ModelServicer:
    """Serves the models of a store, each only to callers with a ticket for it.

    `wanted(id)` is called before a model is served: a group manager then asks the holder for it, if it is not there.
    `may_upload(id)` tells whether an upload of that id is expected. Uploads have at most `max_bytes()` bytes, and the
    tensors `tensors_of(id)` if these are known. They go to the `landing(id)` or, if there is none, into the store.
    `served(id, caller, bytes)` is called for every model that a caller got. `no_room(id, failure)` is called if this
    process has no memory or no disk for an upload. With `bases`, models may travel coded.
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
        no_room: Callable[[str, Failure], None] = lambda *_: None,
        tensors_of: TensorsOf = lambda _: None,
    ) -> None:
        self._store = store
        self._landing = landing
        self._bases = bases
        self._served = served
        self._no_room = no_room
        self._tensors_of = tensors_of
        self._wanted = wanted
        self._may_upload = may_upload
        self._max_bytes = max_bytes
        self._make_room = make_room
        self._fetches, self._watches, self._uploads = Turns(MOST_FETCHES), Turns(MOST_FETCHES), Turns(MOST_UPLOADS)
        self._ways = Ways()
        self._not_given = SeldomLog(logger, logging.INFO, "request")
        self._without_room = SeldomLog(logger, logging.ERROR, "upload")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service at a server."""
        methods = {
            "Fetch": grpc.stream_stream_rpc_method_handler(self.Fetch, model_pb2.FetchRequest.FromString),
            "Upload": grpc.stream_stream_rpc_method_handler(
                self.Upload, response_serializer=model_pb2.Receipt.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(chunks.SERVICE, methods),))

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

        if request.watch:
            await self._watched(request.model_id)
            return

        model_id, loop = request.model_id, asyncio.get_running_loop()

        async def receipt() -> int | None:
            while (answer := await anext(stream, request)) is not request and answer.HasField("receipt"):
                if not answer.receipt.waiting:
                    return chunks.said(answer.receipt)
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
            pace = Pace(way, receipt, stalls.CHUNK_TIMEOUT_S, here=is_here(request.machine))
            try:
                async with pace, asyncio.timeout(TAKE_TIMEOUT_S) as limit:

                    def taken() -> None:
                        if model_id in self._store:
                            limit.reschedule(loop.time() + TAKE_TIMEOUT_S)

                    messages = chunks_of(model_id, weights, pace, self._bases, taken)
                    async with contextlib.aclosing(messages):
                        async for message in messages:
                            yield message
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

    async def _watched(self, model_id: str) -> None:
        """Waits until a promised model was there and is released, or until it will not come.

        The reader keeps this call open, and so notices the loss of this process.
        """
        with self._watches.of((_who(), model_id)), contextlib.suppress(WeightsError):
            await self._store.get(model_id)
            await self._store.fewer_than(1, [model_id])

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

        def accepted(model_id: str) -> bool:
            answers.begin()
            return wanted(model_id)

        def landing_of(model_id: str) -> Landing | None:
            nonlocal landing
            landing = self._landing(model_id)
            return landing

        def still_wanted() -> None:
            # If the reader has gone meanwhile, nobody would release the model.
            require(wanted(coming), FailureCode.CANCELLED, f"model {coming!r} is not wanted any more")

        try:
            with self._uploads.of((_who(), sender.asks)), contextlib.closing(Answers(context.write)) as answers:
                ref, weights = await received(
                    requests,
                    self._tensors_of,
                    self._max_bytes(),
                    accepted,
                    stalls.CHUNK_TIMEOUT_S,
                    answers.receipt,
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
            if error.failure.code is FailureCode.NO_ROOM:
                self._without_room.line(error.failure.detail)
                self._no_room(coming, error.failure)
            blameless = error.failure.code in _BLAMELESS
            await refuse(
                context,
                grpc.StatusCode.ABORTED if blameless else grpc.StatusCode.INVALID_ARGUMENT,
                str(error),
                aiter(requests),
            )


def _who() -> str:
    return str(caller().reader or caller().proven)
