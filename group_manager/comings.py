"""How often nodes attach, and the log lines about it: a node can attach and hang up again without end."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from fedgsp.seldom import SeldomLog

#: Most times that a node may attach within a minute. Over a link that breaks all the time, a node dials again after
#: 0.2 s at the earliest, and then waits longer and longer.
MOST_ATTACHMENTS = 300
MINUTE_S = 60.0


class Comings:
    """Counts the attachments of each node, and logs what becomes of them: seldom a line of one kind about one node."""

    def __init__(self, logger: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._now = logger, now
        self._refused = SeldomLog(logger, logging.WARNING, "refusal", now)
        #: (node, what the lines are about) -> its lines. Only nodes with a ticket get any, so that they are not many.
        self._lines: dict[tuple[str, str], SeldomLog] = {}
        self._attached: Counter[str] = Counter()  # in this minute
        self._minute = -1

    def refused(self, line: str) -> None:
        """Logs a refusal. These lines are not counted by node: a refused caller can give the name of any node."""
        self._refused.line(line)

    def why_not(self, node: str) -> str:
        """Why a node may not attach once more in this minute; empty if it may."""
        if (minute := int(self._now() // MINUTE_S)) != self._minute:
            self._minute = minute
            self._attached.clear()
        self._attached[node] += 1
        most = MOST_ATTACHMENTS
        return f"it has attached {most} times within a minute" if self._attached[node] > most else ""

    def tell(self, node: str, what: str, line: str, level: int = logging.INFO) -> None:
        """Logs a line about a node that is attached; `what` it is about, in the singular."""
        if (node, what) not in self._lines:
            self._lines[node, what] = SeldomLog(self._logger, level, what, self._now)
        self._lines[node, what].line(f"node={node} {line}")
