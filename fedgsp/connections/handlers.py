"""Handlers of gRPC calls, with something around them."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import grpc.aio

from fedgsp.to_the_end import looked_at

#: Is given the request of a call, or the stream of its requests, and yields what the method of the servicer gets.
Visit = Callable[[Any, grpc.aio.ServicerContext], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Opening:
    """Metadata before the first answer. A method that yields its answers may yield it first.

    It is sent with the status again: of a call that is refused at once, the caller may see the status only.
    """

    metadata: tuple[tuple[str, str | bytes], ...] = ()


_ARITIES = {False: "unary", True: "stream"}


def around(handler: Any, visit: Visit) -> Any:
    """The handler with its method inside `visit`, which sees all that happens until the last answer is written.

    A method of a servicer may yield its answers. They are written here, so that a call that is cancelled while an
    answer is on its way ends inside `visit`, and each answer passes one loop, however many visits there are.
    """
    kind = _kind(handler)
    method = getattr(handler, kind)
    yields = inspect.isasyncgenfunction(method)

    async def visited(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with visit(request, context) as seen:
            return await (_write(method(seen, context), context) if yields else method(seen, context))

    return handler._replace(**{kind: visited})


def as_stream(handler: Any) -> Any:
    """The handler with its one request as a stream.

    gRPC calls the method of a handler with one request only after the whole request has come. The method of this
    handler is called at once, so that it can refuse a caller before, and wait for the request no longer than it likes.
    """
    if handler.request_streaming:
        return handler
    kind = _kind(handler)
    streams = f"stream_{_ARITIES[handler.response_streaming]}"
    return handler._replace(request_streaming=True, **{kind: None, streams: getattr(handler, kind)})


def _kind(handler: Any) -> str:
    return f"{_ARITIES[handler.request_streaming]}_{_ARITIES[handler.response_streaming]}"


async def _write(answers: Any, context: grpc.aio.ServicerContext) -> None:
    begun = False
    async with aclosing(answers) as found:
        async for answer in found:
            if not begun:
                opening = answer if isinstance(answer, Opening) else Opening()
                context.set_trailing_metadata(opening.metadata)
                # By itself and to its end: gRPC sends no status to a call that is cancelled while this is on its way.
                await asyncio.shield(looked_at(context.send_initial_metadata(opening.metadata)))
                begun = True
            if not isinstance(answer, Opening):
                await context.write(answer)
