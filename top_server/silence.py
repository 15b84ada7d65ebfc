"""Says in the log what a run waits for, if nothing has happened in it for long.

Nothing is ended, because clients may be slow. Without these lines, a user could not tell a slow client from code of a
package that never returns, or from a fault of FedGSP.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from top_server.grouping.request import listed
from top_server.record.journal import Journal, Line

logger = logging.getLogger(__name__)

#: Seconds without an event after which the log says so. It says so again after twice as long, and so on.
FIRST_S = 600.0


class Waiting:
    """What a run waits for, from its events."""

    def __init__(self) -> None:
        #: Number of events so far.
        self.events = 0
        self._round = 0
        #: Group -> clients of which nothing was heard yet. Groups with a result are not in it.
        self._open: dict[int, set[int]] = {}

    def note(self, event: Line) -> None:
        """Notes an event of the run."""
        self.events += 1
        match event["event"]:
            case "round_started":
                self._round, self._open = event["round"], dict(enumerate(map(set, event["teams"])))
            case "hop_finished" | "client_skipped":
                self._open.get(event["group"], set()).discard(event["client"])
            case "group_finished" | "group_failed":
                self._open.pop(event["group"], None)
            case "round_finished":
                self._open = {}

    def __str__(self) -> str:
        if not self._round:
            return "the first round has not begun"
        if not self._open:
            return f"round {self._round}, no group trains"
        groups = (f"{group} ({_missing(clients)})" for group, clients in self._open.items())
        return f"round {self._round}, groups without a result: {', '.join(groups)}"


async def watch(journal: Journal, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Looks for silences until it is cancelled."""
    waiting = Waiting()
    stop = journal.subscribe(waiting.note)
    try:
        while True:
            await _silence(waiting, sleep)
    finally:
        stop()


async def _silence(waiting: Waiting, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Returns after the next event that it sees."""
    before, silent_s, pause_s = waiting.events, 0.0, FIRST_S
    while True:
        await sleep(pause_s)
        if waiting.events != before:
            return
        silent_s += pause_s
        pause_s = silent_s
        logger.warning("no event for %.0f s: %s", silent_s, str(waiting))


def _missing(clients: set[int]) -> str:
    return f"waits for clients {listed(clients)}" if clients else "all its clients have answered"
