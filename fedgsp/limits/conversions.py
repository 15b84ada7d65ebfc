"""Converts large messages in a thread: one at a time, and those of each peer one after the other.

In a thread, because all other callers would wait meanwhile. One at a time, because each busy thread slows all others
down.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fedgsp.to_the_end import to_the_end

#: A message with more bytes is large.
LARGE_BYTES = 16 * 1024
#: Bytes of large messages that wait for the thread: in all, and of one peer.
MOST_WAITING, MOST_WAITING_OF_PEER = 1 << 30, 1 << 26

T = TypeVar("T")

_waiting: Counter[str | None] = Counter()  # bytes by peer; None: of all
#: The locks in use, by peer; None: of the thread.
_turns: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()


class TooManyError(ValueError):
    """Too many large messages wait at once."""


@contextlib.contextmanager
def waiting(peer: str, size: int) -> Iterator[None]:
    """The body converts a message of a peer. Raises TooManyError if the peer, or all, have too many bytes waiting."""
    if size <= LARGE_BYTES:
        yield
        return
    if _waiting[peer] + size > MOST_WAITING_OF_PEER or _waiting[None] + size > MOST_WAITING:
        raise TooManyError("too many large messages at once: try again later")
    _waiting.update({peer: size, None: size})
    try:
        yield
    finally:
        _waiting.subtract({peer: size, None: size})
        if not _waiting[peer]:
            del _waiting[peer]


async def by_size(peer: str, size: int, convert: Callable[..., T], *what: Any) -> T:
    """The result of `convert`; of a large message of a peer when it is its turn.

    A peer has one message at a time in the queue of the thread, so that it cannot delay others by sending many.
    """
    if size <= LARGE_BYTES:
        return convert(*what)
    turn, thread = (_turns.setdefault(key, asyncio.Lock()) for key in (peer, None))
    async with turn, thread:
        # To its end: a caller that hangs up leaves no thread at work beside the next one.
        return await to_the_end(asyncio.to_thread(convert, *what))
