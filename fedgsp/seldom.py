"""Lines that others could make a process log without end: few of them are written, and the others are counted."""

import logging
import time
from collections.abc import Callable

from fedgsp.words import counted

#: Shortest time between two lines of one kind, in seconds.
INTERVAL_S = 5.0
#: Most characters of a line: what others send may be part of it.
MOST_CHARACTERS = 1000


def is_told(number: int) -> bool:
    """Whether the event of this number gets a line: the first, the tenth, the hundredth, ... do."""
    return str(number).strip("0") == "1"


class SeldomLog:
    """Logs at most one line every `INTERVAL_S` seconds, with the number of lines that were left out before it."""

    def __init__(
        self, logger: logging.Logger, level: int, what: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`what` is what a line is about, in the singular."""
        self._logger, self._level, self._what, self._now = logger, level, what, now
        self._next_line, self._left_out = -float("inf"), 0

    def line(self, text: str, exc_info: bool = False, more: Callable[[], str] = str) -> None:
        """Logs a line, cut if it is long, or counts it; `exc_info` adds the traceback of the exception in hand.

        `more` makes the end of the text, if that takes long: only for a line that is written.
        """
        if self._now() < self._next_line:
            self._left_out += 1
            return
        text += more()
        others = f" ({counted(self._left_out, f'other {self._what}')} since the last line)" if self._left_out else ""
        self._logger.log(self._level, "%s%s", text[:MOST_CHARACTERS], others, exc_info=exc_info or None)
        self._left_out, self._next_line = 0, self._now() + INTERVAL_S
