"""Clocks that tests move on, so that nothing waits for real time."""

from __future__ import annotations

import asyncio


class StoppedClock:
    """Says the time that a test gives it, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Clock:
    """Moves the running event loop's clock: what was due in between happens now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._real = self._loop.time
        self._ahead = 0.0
        self._loop.time = lambda: self._real() + self._ahead  # type: ignore[method-assign]

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
