"""The slots of a node: one thread that runs all code of the task, one order at a time, and one for outgoing steps."""

import asyncio
import contextlib
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fedgsp.tensors import memory
from fedgsp.to_the_end import looked_at
from fedgsp_node.training.control import Control

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: How long a cancelled caller waits for its batch. After that, the thread still runs one call at a time.
STOP_TIMEOUT_S = 5.0
#: The slot gives memory back after this long without work. It waits, because the next order must allocate it again.
REST_AFTER_S = 2.0
#: Frames of a call that hangs which the log shows.
INNERMOST = 20


class Slot:
    """A slot: its thread runs one call at a time, in the order of arrival.

    A cancelled caller stops its call and waits for its end, at most STOP_TIMEOUT_S. After that time the log says where
    the call is, and still no second call begins before the first one has ended.
    """

    def __init__(self, most_s: float = math.inf, trains: bool = True) -> None:
        """`most_s`: a call that takes longer, in seconds, is stopped after its running batch.

        `trains`: it is the training slot, and not that of outgoing steps. The process keeps memory for its calls.
        """
        self._most_s = most_s
        self._trains = trains
        #: The slot of outgoing steps of the same node.
        self.outgoing = Slot(trains=False) if trains else self
        name, self._what = ("training", "a call of the task") if trains else ("outgoing", "an outgoing step")
        self._free = asyncio.Lock()
        self._clock: int | None = None
        self._ident = 0
        #: A call that did not end in time after its caller was cancelled.
        self._hung: asyncio.Future[Any] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=self._note_clock)
        self._current: Control | None = None
        self._past = 0
        self._wanted = 0
        self._rest: asyncio.TimerHandle | None = None

    @property
    def mark(self) -> int:
        """Number of batches trained so far."""
        return self._past + (self._current.mark if self._current else 0)

    @property
    def computed_s(self) -> float:
        """Seconds of processor time that the thread has used so far; 0 where the system does not tell."""
        try:
            return time.clock_gettime(self._clock) if self._clock is not None else 0.0
        except OSError:  # the thread has ended
            return 0.0

    def _note_clock(self) -> None:
        self._ident = threading.get_ident()
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS
            self._clock = time.pthread_getcpuclockid(threading.get_ident())

    async def run(self, call: Callable[[Control], T]) -> T:
        """Runs a call in the thread of the slot. A cancelled caller stops the call and waits until it has ended."""
        self._wanted += 1
        self._do_not_rest()
        try:
            async with self._free:
                return await self._run(call)
        finally:
            self._wanted -= 1
            if self._trains and not self._wanted:
                self._do_not_rest()
                self._rest = asyncio.get_running_loop().call_later(REST_AFTER_S, memory.at_rest)

    async def _run(self, call: Callable[[Control], T]) -> T:
        if self._hung is not None:  # a call in the queue of the thread would keep its model, even if it is called off
            await asyncio.wait([self._hung])
            self._hung = None
        if self._trains:
            memory.at_work()
        control = Control(most_s=self._most_s)
        running = looked_at(asyncio.get_running_loop().run_in_executor(self._thread, call, control))
        self._current = control
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            control.stop.set()
            await _ended(running)
            if not running.done():
                self._hung = running
                logger.warning(
                    "%s was cancelled %.0f s ago and still runs; all further orders wait for it:\n%s",
                    self._what,
                    STOP_TIMEOUT_S,
                    self._where(),
                )
            raise
        finally:
            self._past += control.mark
            self._current = None

    def close(self) -> None:
        """Asks a running call to stop. Code of a user that never returns is ended by `lifecycle.leave`."""
        if self._current is not None:
            self._current.stop.set()
        if self.outgoing is not self:
            self.outgoing.close()
        self._do_not_rest()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _where(self) -> str:
        """The lines of code that the thread is at, the innermost last."""
        frame = sys._current_frames().get(self._ident)
        return "".join(traceback.format_stack(frame)[-INNERMOST:]) if frame is not None else "it has no frame"

    def _do_not_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None


async def _ended(running: asyncio.Future[Any]) -> None:
    """Waits until a stopped call has ended, at most STOP_TIMEOUT_S; further cancellations do not end the wait."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STOP_TIMEOUT_S
    while not running.done() and loop.time() < deadline:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running], timeout=deadline - loop.time())
