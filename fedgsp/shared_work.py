"""Work that is done once for all who wait for it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedgsp.to_the_end import looked_at

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Share(Generic[T]):
    """The result of shared work, for one of those who waited."""

    result: T
    #: Whether the work began for this one.
    first: bool
    #: Number of all who have waited for it.
    of: int


@dataclass(slots=True, eq=False)
class _Running(Generic[T]):
    task: asyncio.Future[T]
    waiting: int = 0
    joined: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SharedWork(Generic[T]):
    """Work in progress by its key. It is called off when nobody waits for it any more."""

    _running: dict[Hashable, _Running[T]] = field(default_factory=dict)

    async def share(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> Share[T]:
        """Waits for the work of a key, which begins now if nobody else waits for it; raises what the work raises."""
        running = self._running.get(key)
        first = running is None
        if running is None:
            running = self._running[key] = _Running(looked_at(work()))
        running.waiting += 1
        running.joined += 1
        try:
            result = await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if not running.waiting:
                # Now, so that nobody joins work that is called off.
                running.task.cancel()
                del self._running[key]
        return Share(result, first, running.joined)
