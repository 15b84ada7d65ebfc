"""The node's training slot: one thread in which all of the task's code runs, one order at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fedgsp import memory
from fedgsp_node.training.control import Control

T = TypeVar("T")

#: What a batch may take once its order was called off. After that the thread itself still runs one call at a time.
STOP_TIMEOUT_S = 5.0
#: Without work for so long, it gives its memory back. The next order would have to ask for all of it again.
REST_AFTER_S = 2.0


class Slot:
    """First come, first served. Invariant: at most one call runs, and no caller leaves while its call still runs."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self._current: Control | None = None
        self._past = 0
        self._wanted = 0
        self._rest: asyncio.TimerHandle | None = None

    @property
    def mark(self) -> int:
        """Batches done here so far; grows while anything moves."""
        return self._past + (self._current.mark if self._current else 0)

    async def run(self, call: Callable[[Control], T]) -> T:
        """Runs a call in the slot's thread; when the caller is cancelled, the call is stopped and waited for."""
        self._wanted += 1
        self._do_not_rest()
        try:
            async with self._free:
                return await self._run(call)
        finally:
            self._wanted -= 1
            if not self._wanted:
                self._do_not_rest()
                self._rest = asyncio.get_running_loop().call_later(REST_AFTER_S, memory.at_rest)

    async def _run(self, call: Callable[[Control], T]) -> T:
        memory.at_work()
        control = Control()
        running = asyncio.get_running_loop().run_in_executor(self._thread, call, control)
        self._current = control
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            control.stop.set()
            await _ended(running)
            raise
        finally:
            self._past += control.mark
            self._current = None

    def close(self) -> None:
        """Asks a call that still runs to stop; code of a task that never returns is left to `lifecycle.leave`."""
        if self._current is not None:
            self._current.stop.set()
        self._do_not_rest()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _do_not_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None


async def _ended(running: asyncio.Future[Any]) -> None:
    """Waits for a call that was told to stop, through further cancellations too, but not for ever."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STOP_TIMEOUT_S
    while not running.done() and loop.time() < deadline:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running], timeout=deadline - loop.time())
    # Looked at, now or later, so that nobody complains about it.
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
