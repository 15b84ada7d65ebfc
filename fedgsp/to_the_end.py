"""Work that a cancellation does not cut off in between."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def looked_at(work: Awaitable[T]) -> asyncio.Future[T]:
    """The future of `work`, whose failure may go unseen.

    Whoever waits for a shielded future may be cancelled at the moment when it fails. Nobody looks at the failure then,
    and asyncio would log it as an error of the program.
    """
    future = asyncio.ensure_future(work)
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future


async def to_the_end(work: Awaitable[T]) -> T:
    """The result of `work`, which is never cut off in between: whoever is cancelled meanwhile waits for its end."""
    future = looked_at(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
