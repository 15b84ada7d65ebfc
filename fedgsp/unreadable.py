"""How a server answers bytes that are not a message. Without this, gRPC would report an internal error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

_WHY = "the request is no message of this call"


class RefuseUnreadable(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses a call if its single request cannot be decoded. In a stream, such a request counts as empty."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of a call, which then gets the undecoded requests."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        if handler.request_streaming:
            # Every servicer must handle an empty message anyway.
            return handler._replace(request_deserializer=_or_empty(handler.request_deserializer))
        if handler.response_streaming:
            stream = _stream(handler.unary_stream, handler.request_deserializer)
            return handler._replace(request_deserializer=None, unary_stream=stream)
        one = _one(handler.unary_unary, handler.request_deserializer)
        return handler._replace(request_deserializer=None, unary_unary=one)


def _or_empty(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read_or_empty(message: bytes) -> Any:
        try:
            return read(message)
        except DecodeError:
            return read(b"")

    return read_or_empty


def _one(behaviour: Callable[..., Awaitable[Any]], read: Callable[[bytes], Any]) -> Callable[..., Awaitable[Any]]:
    async def answer(message: bytes, context: grpc.aio.ServicerContext) -> Any:
        try:
            request = read(message)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _WHY)
        return await behaviour(request, context)

    return answer


def _stream(
    behaviour: Callable[..., AsyncIterator[Any]], read: Callable[[bytes], Any]
) -> Callable[..., AsyncIterator[Any]]:
    async def answers(message: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            request = read(message)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _WHY)
        async with aclosing(behaviour(request, context)) as found:  # type: ignore[type-var]
            async for answer in found:
                yield answer

    return answers
