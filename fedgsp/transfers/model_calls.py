"""The calls that move weights: to fetch a model from its holder, and to upload it to the process that asked for it."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any

import grpc.aio

from fedgsp.connections.channels import describe
from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.security.access import shown
from fedgsp.tensors.memory import room
from fedgsp.tensors.spill import Room
from fedgsp.tensors.weights import Weights, WeightsError, require
from fedgsp.to_the_end import looked_at
from fedgsp.transfers import chunks, stalls
from fedgsp.transfers.answers import Answers
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.model_streams import chunks_of, received
from fedgsp.transfers.pacing import Pace, Way
from fedgsp.transfers.pipes import is_here, machine
from fedgsp.v1 import model_pb2

#: Longest wait for a promised model. The group manager watches the chain and cancels it long before.
PROMISE_TIMEOUT_S = 24 * 3600.0
#: A holder that has not taken the question for a model after so many seconds cannot be reached.
ASK_TIMEOUT_S = 30.0
#: While a model comes, its holder counts as lost only if no bytes have come for so many seconds, too.
SILENT_S = 2.0
#: Pause between two looks at a holder whose connection for orders is lost, in seconds.
LOOK_AGAIN_S = 0.25


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
    watched_over: grpc.aio.Channel | None = None,
) -> Weights:
    """Fetch a model from its holder. A `promised` model may not exist yet; any other model must come at once.

    `ticket` allows it. If `digest` is given, the model must have this digest, whatever its holder announces. The model
    may travel coded against one of `bases`. Over the channel `watched_over`, the loss of the holder is noticed.

    Raises WeightsError if the model cannot be fetched, has other tensors than `expected` or more than `max_bytes`, is
    cut short, has another digest than announced, or holds values that are not finite.
    """
    call = channel.stream_stream(f"/{chunks.SERVICE}/Fetch", model_pb2.FetchRequest.SerializeToString)(
        timeout=PROMISE_TIMEOUT_S, metadata=shown(ticket)
    )

    over, clock = _end_of(call), asyncio.get_running_loop().time
    answers = Answers(lambda receipt: _write(call, model_pb2.FetchRequest(receipt=receipt)))
    heard = -math.inf

    def comes(found: str) -> bool:
        nonlocal heard
        heard = clock()
        answers.begin()
        return found == model_id

    def came() -> None:
        nonlocal heard
        heard = clock()
        on_chunk()

    def silent_s() -> float:
        return clock() - heard

    watch = looked_at(_watch(watched_over, model_id, ticket, silent_s, call.cancel)) if watched_over else None

    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            await _write_first(call, model_pb2.FetchRequest(model_id=model_id, machine=machine()))
        _, weights = await received(
            call,
            lambda _: expected,
            max_bytes,
            comes,
            None if promised else stalls.CHUNK_TIMEOUT_S,
            answers.receipt,
            came,
            make_room,
            bases,
            over=over,
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
        answers.close()
        call.cancel()
        if watch is not None:
            watch.cancel()
    require(
        digest in (b"", weights.digest),
        FailureCode.WRONG_DIGEST,
        f"model {model_id!r} is not the model that its maker reported",
    )
    return weights


async def _watch(
    channel: grpc.aio.Channel,
    model_id: str,
    ticket: bytes,
    silent_s: Callable[[], float],
    give_up: Callable[[], object],
) -> None:
    """Gives up if the holder of a promised model is lost. Ends when the holder has released the model.

    The connection for models is patient with slow links, and this one is not: nothing but orders goes over it. But its
    pings wait behind the bytes of the model where a link is full. So its loss counts only if nothing comes over the
    other connection either: `silent_s` are the seconds since the last bytes, without an end before the first ones.
    """
    while await _is_lost(channel, model_id, ticket):
        if silent_s() >= SILENT_S:
            give_up()
            return
        await asyncio.sleep(LOOK_AGAIN_S)


async def _is_lost(channel: grpc.aio.Channel, model_id: str, ticket: bytes) -> bool:
    """Waits until the holder of a model is lost (True), or has released the model or refuses to be watched (False)."""
    call = channel.stream_stream(f"/{chunks.SERVICE}/Fetch", model_pb2.FetchRequest.SerializeToString)(
        timeout=PROMISE_TIMEOUT_S, metadata=shown(ticket)
    )
    try:
        await _write_first(call, model_pb2.FetchRequest(model_id=model_id, watch=True))
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        call.cancel()
    return False


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

    The receiver ends the call if no chunk comes. It has 30 seconds to end the call after the last one. `receiver` is
    the machine of the receiver, if known, and `way` what earlier uploads have found about the link. The model may
    travel coded against one of `bases`.
    """
    call = channel.stream_stream(f"/{chunks.SERVICE}/Upload", response_deserializer=model_pb2.Receipt.FromString)(
        metadata=shown(ticket)
    )
    what = f"model {model_id!r}"

    async def answer() -> model_pb2.Receipt | None:
        """The next message that is more than a sign of life; None at the end of the call."""
        said: model_pb2.Receipt | None
        while (said := await call.read()) is not grpc.aio.EOF:
            require(
                said is not None,  # what gRPC gives for a message that cannot be decoded
                FailureCode.BAD_STREAM,
                f"{what}: its receiver sent a message that is not a receipt",
            )
            if not said.waiting:
                return said
        return None

    async def receipt() -> int | None:
        said = await answer()
        if said is None:
            raise await _end(call)
        return chunks.said(said)

    async def end() -> None:
        limit_s = stalls.CHUNK_TIMEOUT_S
        try:
            async with asyncio.timeout(limit_s):
                too_many = await answer()
        except TimeoutError:
            why = f"{what}: its receiver confirmed all bytes, and did not end the call for {limit_s:.0f} s"
            raise WeightsError(FailureCode.UNREACHABLE, why) from None
        require(too_many is None, FailureCode.BAD_STREAM, f"{what}: its receiver sent one receipt too many")

    pace = Pace(way or Way(), receipt, stalls.CHUNK_TIMEOUT_S, here=is_here(receiver))
    try:
        async with pace:
            write = _write_first
            messages = chunks_of(model_id, weights, pace, bases, on_chunk, _end_of(call))
            async with contextlib.aclosing(messages):
                async for message in messages:
                    await write(call, message)
                    write = _write
            await call.done_writing()
            await pace.settled()
        await end()
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


def _end_of(call: Any) -> asyncio.Future[None]:
    """A future that is done when the call has ended, well or badly."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    call.add_done_callback(end)
    return ended


async def _write_first(call: Any, message: Any) -> None:
    """Writes the first message of a call.

    gRPC itself waits for ever with the first message of a call if its channel is closed before the call is on its way.
    """
    ended = _end_of(call)
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
