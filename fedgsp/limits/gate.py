"""What a call meets at a server once its caller is admitted: it counts calls and items, and sets deadlines.

Messages are decoded here, large ones in a thread.
"""

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

import grpc.aio
from google.protobuf.message import DecodeError

from fedgsp import wire
from fedgsp.connections.handlers import around, as_stream
from fedgsp.limits import calls, items
from fedgsp.limits.calls import ALLOWANCES, Allowance
from fedgsp.limits.conversions import TooManyError, by_size, waiting
from fedgsp.limits.counting import TooMuchError
from fedgsp.security.access import proven
from fedgsp.seldom import SeldomLog

logger = logging.getLogger(__name__)

Read = Callable[[bytes], Any]
T = TypeVar("T")


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Holds the callers of one server to a table of allowances. RPCs that are not in the table pass."""

    def __init__(self, allowances: Mapping[str, Allowance] = ALLOWANCES) -> None:
        self._allowances = allowances
        self._open: Counter[tuple[str, ...]] = Counter()  # calls by RPC, and by RPC and peer
        #: For each RPC: a flood of one must not hide the refusals of another.
        self._refusals = {rpc: SeldomLog(logger, logging.WARNING, "refusal") for rpc in allowances}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of the call, behind this gate."""
        handler = await continuation(handler_call_details)
        allowance = self._allowances.get(handler_call_details.method)
        if handler is None or allowance is None:
            return handler
        method, single = handler_call_details.method, not handler.request_streaming
        rpc = _Rpc(method, allowance, handler.request_deserializer, single, self._refusals[method])
        return as_stream(around(handler, functools.partial(self._let_in, rpc)))._replace(request_deserializer=None)

    @contextlib.contextmanager
    def counting(self, most: int, most_of_peer: int, what: str, peer: str) -> Iterator[bool]:
        """Count something that a peer has open during the block; yields False, and counts nothing, above a limit."""
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

    @contextlib.asynccontextmanager
    async def _let_in(self, rpc: "_Rpc", requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        """The requests as the servicer sees them. Ends the call if there are too many of its kind."""
        peer = peer_of(context)
        with contextlib.ExitStack() as stack:
            at_once, of_peer = rpc.allowance.at_once, rpc.allowance.share(proven())
            if not stack.enter_context(self.counting(at_once, of_peer, rpc.method, peer)):
                await self._refuse(rpc, rpc.method, "too many calls at once", context)
            silent = contextlib.ExitStack()
            stack.push(silent)
            # For each RPC: silent calls that everybody may make must not keep out those that need a ticket.
            what = f"silent {rpc.method}"
            if not silent.enter_context(self.counting(calls.MOST_SILENT, calls.MOST_SILENT_OF_PEER, what, peer)):
                await self._refuse(rpc, what, "too many silent calls at once", context)
            stream = _Stream(rpc, requests, context, silent.close)
            yield await _one(rpc, stream, context) if rpc.single else stream

    async def _refuse(self, rpc: "_Rpc", what: str, why: str, context: grpc.aio.ServicerContext) -> NoReturn:
        """Ends a call. The log says who has most calls, too: that need not be the caller that is refused."""
        peer = peer_of(context)

        def holders() -> str:
            number, name = max((number, of[1]) for of, number in self._open.items() if len(of) > 1 and of[0] == what)
            own, total = self._open[what, peer], self._open[what,]
            return f" (it has {own:,} of the {total:,} that are open; most, {number:,}, are of {name})"

        rpc.refusals.line(f"refused {rpc.method} from {peer}: {why}", more=holders)
        await end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)


@dataclass(frozen=True, slots=True)
class _Rpc:
    """An RPC with its limits, and what decodes its messages: None if its handler reads bytes."""

    method: str
    allowance: Allowance
    read: Read | None
    #: Whether its caller sends one message, and not a stream.
    single: bool
    #: The log of the callers that were refused because they, or all, had too much open.
    refusals: SeldomLog

    async def decoded(self, message: bytes, context: grpc.aio.ServicerContext) -> Any:
        """A message; raises DecodeError for what is none. Ends the call for a message with too many items."""
        if self.read is None:
            return message
        peer = peer_of(context)
        try:
            with waiting(peer, len(message)):
                return await by_size(peer, len(message), self._counted, message)
        except TooManyError as error:
            self.refusals.line(f"refused {self.method} from {peer}: {error}")
            await end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except TooMuchError as error:
            await end(context, grpc.StatusCode.INVALID_ARGUMENT, f"the message is too large: {error}")

    def _counted(self, message: bytes) -> Any:
        assert self.read is not None
        if self.allowance.message is not None:
            items.check(message, self.allowance.message)
        return self.read(message)


async def _one(rpc: _Rpc, stream: "_Stream", context: grpc.aio.ServicerContext) -> Any:
    try:
        return await rpc.decoded(await stream.message(), context)
    except (DecodeError, StopAsyncIteration):
        await end(context, grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this call")


class _Stream:
    """The messages of one caller, counted and decoded, each within its time.

    A class and not a generator: a generator could not go on after a wait for its next message was given up.
    """

    def __init__(
        self, rpc: _Rpc, messages: AsyncIterable[bytes], context: grpc.aio.ServicerContext, spoken: Callable[[], None]
    ) -> None:
        self._rpc = rpc
        self._from = messages
        self._messages: AsyncIterator[bytes] | None = None  # not before it is read: some servicers never do
        self._context = context
        self._spoken: Callable[[], None] | None = spoken

    def __aiter__(self) -> "_Stream":
        return self

    async def message(self) -> bytes:
        """The next message; raises StopAsyncIteration at the end of the stream."""
        if self._messages is None:
            self._messages = aiter(self._from)
        try:
            async with asyncio.timeout(calls.FIRST_MESSAGE_S if self._spoken else self._rpc.allowance.silence_s):
                message = await anext(self._messages)
        except TimeoutError:
            await end(self._context, grpc.StatusCode.DEADLINE_EXCEEDED, "no message came in time")
        if self._spoken:
            self._spoken()
            self._spoken = None
        return message

    async def __anext__(self) -> Any:
        message = await self.message()
        try:
            return await self._rpc.decoded(message, self._context)
        except DecodeError:  # an empty message, which every servicer must handle anyway
            assert self._rpc.read is not None
            return self._rpc.read(b"")


async def decoded(kind: type[T], proto: Any, context: grpc.aio.ServicerContext) -> T:
    """The value of a protobuf message of a call; a large one is converted in a thread."""
    return await by_size(peer_of(context), proto.ByteSize(), wire.decode, kind, proto)


def peer_of(context: grpc.aio.ServicerContext) -> str:
    """Who calls: the identity in its certificate, or else its address."""
    return str(proven() or address_of(context.peer()))


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, without its port: "ipv4:10.0.0.1:4711" is at "ipv4:10.0.0.1"."""
    kind, _, where = peer.partition(":")
    return f"{kind}:{where.rpartition(':')[0] or where}"


def host_of(peer: str) -> str:
    """The host in gRPC's name of a peer: "10.0.0.1" for "ipv4:10.0.0.1:4711", "[::1]" for "ipv6:%5B::1%5D:4711"."""
    return unquote(address_of(peer).partition(":")[2])


async def end(context: grpc.aio.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    """End a call. The reason tells nothing about this process."""
    await context.abort(code, why)
    raise AssertionError("abort does not return")
