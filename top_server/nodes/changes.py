"""Waits for a condition on nodes and clients, which is looked at after every change of them."""

import asyncio
import contextlib
from collections.abc import Callable

from fedgsp.processes.awake import Awake


class Changes:
    """The changes of the nodes and clients of a run."""

    def __init__(self, awake: Awake) -> None:
        self._awake = awake
        self._next = asyncio.Event()

    def note(self) -> None:
        """Wakes all that wait."""
        # Nothing is awaited: a node that hangs up meanwhile must not stay a member without a stream.
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until the condition holds; False if it does not after the timeout."""
        deadline = self._awake.time() + timeout_s
        while not holds():
            left_s = deadline - self._awake.time()
            if left_s <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._next.wait()
        return True
