"""The time for which this process was awake: a frozen process must not take its own pause for others' silence.

A process can be frozen as a whole: by SIGSTOP, by a laptop that sleeps, by a virtual machine that is moved. When it
goes on, all its deadlines have passed at once, although nobody else was late.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

#: The clock that also goes on while the machine sleeps, which the clock of the event loop does not do on Linux.
_ALWAYS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: A process that is awake looks at the clock so often, in seconds.
BEAT_S = 0.25
#: A pause between two looks counts as no more than this, in seconds. What is longer, the process was frozen.
LONGEST_PAUSE_S = 1.0


def awake_s(pause_s: float, longest_pause_s: float = LONGEST_PAUSE_S) -> float:
    """How many seconds of a pause between two looks at the clock count as time awake."""
    return min(max(pause_s, 0.0), longest_pause_s)


def always() -> float:
    """Seconds that go on while this process is frozen, and while its machine sleeps."""
    return time.clock_gettime(_ALWAYS)


class Awake:
    """A clock that stands still while this process is frozen."""

    def __init__(self, now: Callable[[], float], longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        """`now` is a clock that goes on, such as `always`, in seconds."""
        self._now = now
        self._longest_pause_s = longest_pause_s
        self._looked = now()
        self._awake = 0.0  # at the last look
        self._woke = float("-inf")  # time awake at which the last freeze ended

    def time(self) -> float:
        """Seconds for which the process was awake."""
        self.look()
        return self._awake

    def look(self) -> None:
        """Counts the time since the last look."""
        now = self._now()
        pause, self._looked = now - self._looked, now
        self._awake += awake_s(pause, self._longest_pause_s)
        if pause > self._longest_pause_s:
            self._woke = self._awake

    def since_freeze(self) -> float:
        """Seconds awake since the last freeze ended; infinity if there was none."""
        return self.time() - self._woke

    async def keep_looking(self) -> NoReturn:
        """Looks at the clock all the time: a freeze is noticed only between two looks."""
        while True:
            await asyncio.sleep(BEAT_S)
            self.look()
