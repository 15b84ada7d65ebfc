"""Work that a cancellation does not cut off in between."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
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


@contextlib.contextmanager
def cancelled_elsewhere() -> Iterator[None]:
    """Lets a cancellation pass over that is not one of this task: what it waited for was called off."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise


async def to_the_end(work: Awaitable[T]) -> T:
    """The result of `work`, which is never cut off in between: whoever is cancelled meanwhile waits for its end.

    Also if the cancellation comes more than once. When a process ends, `asyncio.run` cancels the work itself.
    """
    future = looked_at(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
