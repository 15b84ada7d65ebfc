"""Ends a call that this process serves, from outside its handler, and tells its caller why.

gRPC sends no status to the caller of a handler that is only cancelled: the caller would wait until its own deadline.
"""

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import grpc.aio

#: Time for a message that is being sent when its call is ended, in seconds. Without it, gRPC sends no status, either.
SETTLE_S = 0.2

_reasons: WeakKeyDictionary[asyncio.Task[Any], tuple[grpc.StatusCode, str]] = WeakKeyDictionary()


def end_call(call: asyncio.Task[Any], code: grpc.StatusCode, why: str) -> None:
    """End the call that a task serves; its caller gets this status."""
    _reasons[call] = code, why
    call.cancel()


@asynccontextmanager
async def told(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """The body is the call that `context` belongs to. If `end_call` ends it, the caller gets the reason."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        call = asyncio.current_task()
        reason = _reasons.pop(call, None) if call is not None else None
        if call is None or reason is None:  # the caller has hung up
            raise
        call.uncancel()
        traceback.clear_frames(cancelled.__traceback__)  # they hold what the call has received so far
        await asyncio.sleep(SETTLE_S)
        await context.abort(*reason)
