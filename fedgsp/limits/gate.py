"""The first thing that a call meets at a server: it counts calls, sets deadlines, and counts items before decoding.

Messages are decoded here, large ones in a thread, because all other callers would wait meanwhile.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, NoReturn

import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from fedgsp.access import kind_of
from fedgsp.limits import calls, items
from fedgsp.limits.calls import ALLOWANCES, Allowance
from fedgsp.limits.counting import TooMuchError

#: Messages with more bytes are counted and decoded in a thread.
LARGE_BYTES = 16 * 1024

Read = Callable[[bytes], Any]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Holds the callers of one server to a table of allowances. RPCs that are not in the table pass."""

    def __init__(self, allowances: Mapping[str, Allowance] = ALLOWANCES) -> None:
        self._allowances = allowances
        self._open: Counter[tuple[str, ...]] = Counter()  # calls by RPC, and by RPC and peer

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of the call, behind this gate."""
        handler = await continuation(handler_call_details)
        allowance = self._allowances.get(handler_call_details.method)
        if handler is None or allowance is None:
            return handler
        kind = kind_of(handler)
        behaviour = getattr(handler, kind)
        visits = _Visits(self, handler_call_details.method, allowance, handler.request_deserializer)
        if not handler.request_streaming:
            # The one request comes with the call. A method of the servicer may also be a plain coroutine.
            read = _counted(handler.request_deserializer, allowance.message)
            guarded = visits.of_stream(behaviour) if handler.response_streaming else visits.of_answer(behaviour)
            return handler._replace(request_deserializer=read, **{kind: guarded})
        # In `Upload` the servicer writes its answers by itself, which makes it a coroutine.
        in_stream = handler.response_streaming and not asyncio.iscoroutinefunction(behaviour)
        guarded = visits.of_stream(behaviour) if in_stream else visits.of_answer(behaviour)
        return handler._replace(request_deserializer=None, **{kind: guarded})

    @contextlib.contextmanager
    def counting(self, most: int, most_of_peer: int, what: str, peer: str) -> Iterator[bool]:
        """Count something that a peer has open while the block lasts; yields False, and counts nothing, above a limit.

        Closing the block twice counts once.
        """
        keys = (what,), (what, peer)
        if self._open[keys[0]] >= most or self._open[keys[1]] >= most_of_peer:
            yield False
            return
        self._open.update(keys)
        try:
            yield True
        finally:
            for key in keys:
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]


class _Visits:
    """What happens to the calls of one RPC before its servicer sees them."""

    def __init__(self, gate: Gate, method: str, allowance: Allowance, read: Read | None) -> None:
        self._gate = gate
        self._method = method
        self._allowance = allowance
        self._read = read

    def of_answer(self, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(requests: Any, context: grpc.aio.ServicerContext) -> Any:
            async with self._let_in(requests, context) as seen:
                return await behaviour(seen, context)

        return answer

    def of_stream(self, behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def answers(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            async with (
                self._let_in(requests, context) as seen,
                contextlib.aclosing(behaviour(seen, context)) as found,  # type: ignore[type-var]
            ):
                async for answer in found:
                    yield answer

        return answers

    @contextlib.asynccontextmanager
    async def _let_in(self, requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        """The requests as the servicer sees them. Ends the call if there are too many of its kind."""
        allowance, peer = self._allowance, address_of(context.peer())
        with contextlib.ExitStack() as stack:
            counted = self._gate.counting(allowance.at_once, allowance.of_peer, self._method, peer)
            if not stack.enter_context(counted):
                await end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
            if not hasattr(requests, "__aiter__"):  # the one request of the call
                yield requests
                return
            silent = contextlib.ExitStack()
            stack.push(silent)
            if not silent.enter_context(
                self._gate.counting(calls.MOST_SILENT, calls.MOST_SILENT_OF_PEER, "silent", peer)
            ):
                await end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many silent calls at once")
            yield _Stream(requests, context, self._allowance, self._read, silent.close)


class _Stream:
    """The messages of one caller, counted and decoded, each within its time.

    A class and not a generator: a generator could not go on after a wait for its next message was given up.
    """

    def __init__(
        self,
        messages: AsyncIterable[bytes],
        context: grpc.aio.ServicerContext,
        allowance: Allowance,
        read: Read | None,
        spoken: Callable[[], None],
    ) -> None:
        self._from = messages
        self._messages: AsyncIterator[bytes] | None = None  # not before it is read: some servicers never do
        self._context = context
        self._kind = allowance.message
        self._silence_s = allowance.silence_s
        self._read = read
        self._spoken: Callable[[], None] | None = spoken

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Any:
        if self._messages is None:
            self._messages = aiter(self._from)
        try:
            async with asyncio.timeout(calls.FIRST_MESSAGE_S if self._spoken else self._silence_s):
                message = await anext(self._messages)
        except TimeoutError:
            await end(self._context, grpc.StatusCode.DEADLINE_EXCEEDED, "no message came in time")
        if self._spoken:
            self._spoken()
            self._spoken = None
        if self._read is None:
            return message
        try:
            if len(message) > LARGE_BYTES:
                return await asyncio.to_thread(_read, message, self._read, self._kind)
            return _read(message, self._read, self._kind)
        except TooMuchError as error:
            await end(self._context, grpc.StatusCode.INVALID_ARGUMENT, f"the message is too large: {error}")


def _read(message: bytes, read: Read, kind: Descriptor | None) -> Any:
    """A message, which is empty if it cannot be read: every servicer must handle an empty message anyway."""
    try:
        if kind is not None:
            items.check(message, kind)
        return read(message)
    except DecodeError:
        return read(b"")


def _counted(read: Read | None, kind: Descriptor | None) -> Read | None:
    """The same decoder for a single request, which also counts; DecodeError for a message with too many items."""
    if read is None or kind is None:
        return read

    def counted(message: bytes) -> Any:
        try:
            items.check(message, kind)
        except TooMuchError as error:
            raise DecodeError(str(error)) from None
        return read(message)

    return counted


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, without its port: "ipv4:10.0.0.1:4711" is at "ipv4:10.0.0.1"."""
    kind, _, where = peer.partition(":")
    return f"{kind}:{where.rpartition(':')[0] or where}"


async def end(context: grpc.aio.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    """End a call. The reason tells nothing about this process."""
    await context.abort(code, why)
    raise AssertionError("abort does not return")
