"""The node's training slot: one thread in which all of the task's code runs, one order at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedgsp_node.training.control import Control

T = TypeVar("T")


class Slot:
    """First come, first served. Invariant: at most one call runs, and no caller leaves while its call still runs."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self._current: Control | None = None
        self._past = 0

    @property
    def mark(self) -> int:
        """Batches done here so far; grows while anything moves."""
        return self._past + (self._current.mark if self._current else 0)

    async def run(self, call: Callable[[Control], T]) -> T:
        """Runs a call in the slot's thread; when the caller is cancelled, the call is stopped and waited for."""
        async with self._free:
            control = Control()
            running = asyncio.get_running_loop().run_in_executor(self._thread, call, control)
            self._current = control
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                control.stop.set()
                while not running.done():  # a second cancellation, too, waits for the thread
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()  # looked at, so that nobody complains about it
                raise
            finally:
                self._past += control.mark
                self._current = None

    def close(self) -> None:
        """Ends the thread once its call is over."""
        if self._current is not None:
            self._current.stop.set()
        self._thread.shutdown(wait=True)
