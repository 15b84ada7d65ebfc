"""Trackers that follow a run: each in a thread of its own, which reads the record that the run writes anyway.

The record on disk takes the place of a queue. A tracker that is slow, or away for a while, therefore costs the run
no memory, and finds all that it has missed when it is back.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgsp.errors import PeerError, UserError
from fedgsp.visible import visible
from top_server.record.directory import RunDirectory
from top_server.record.journal import Journal, Line
from top_server.recorded import BEGINS
from top_server.tracking.base import Points, Tracker, Tracking, thinned
from top_server.tracking.points import ENDS, ROUND
from top_server.tracking.reading import Reader

logger = logging.getLogger(__name__)

#: A tracker that has failed is tried again at the end of each round, and after this long, in seconds.
AGAIN_S = 30.0
#: How long all trackers together may take to come to an end when the run is over, in seconds.
END_S = 20.0
#: Characters of a reason that are shown, at most.
_MOST_SHOWN = 300


class Following:
    """Brings one tracker up to date with the record of a run. What fails is tried again by the next call."""

    def __init__(self, tracker: Tracker, options: Any, directory: RunDirectory) -> None:
        self._tracker = tracker
        self._options = options
        self._directory = directory
        self._tracking: Tracking | None = None
        self._reader: Reader | None = None
        self._has = 0
        self._unsent: Points | None = None

    def prepare(self) -> None:
        """Makes the object of the tracker, which imports what it needs."""
        if self._tracking is None:
            self._tracking = self._tracker.load()(self._options)

    def catch_up(self) -> None:
        """Gives the tracker all rounds that are finished by now. Raises what the tracker raises, and DataError."""
        self.prepare()
        assert self._tracking is not None
        if self._reader is None:
            reader = Reader(self._directory)
            self._has = self._tracking.begin(reader.about)
            self._reader = reader
        self._send()
        for points in self._reader.read():
            self._unsent = points
            self._send()

    def end(self) -> None:
        """Tells the tracker how the run ended. Raises what the tracker raises."""
        assert self._tracking is not None
        assert self._reader is not None
        self._tracking.end(self._reader.outcome)

    def _send(self) -> None:
        assert self._tracking is not None
        if self._unsent is not None and self._unsent.round > self._has:
            self._tracking.add(thinned(self._unsent, self._options))
        self._unsent = None


def exported(tracker: Tracker, options: Any, directory: Path) -> None:
    """Gives a tracker a recorded run. Raises DataError for a damaged record, PeerError if the tracker fails."""
    following = Following(tracker, options, RunDirectory(directory))
    try:
        following.catch_up()
        following.end()
    except UserError:
        raise
    except Exception as error:  # the code of others
        reason = visible(f"{type(error).__name__}: {error}")[:_MOST_SHOWN]
        raise PeerError(f"{tracker} fails: {reason}", "correct that, and export again") from error


class _Follower(threading.Thread):
    """The thread of one tracker."""

    def __init__(self, name: str, following: Following) -> None:
        super().__init__(name=f"tracker {name}", daemon=True)  # it may hang in a call of the tracker's library
        self._name = name
        self._following = following
        self._wake = threading.Event()
        self._begun = self._over = self._warned = False

    def note(self, event: Line) -> None:
        """Wakes the thread at an event that it should know of; called by the thread of the run."""
        self._begun = self._begun or event["event"] in BEGINS
        if event["event"] in (*BEGINS, *ENDS, ROUND):
            self._wake.set()

    def run(self) -> None:
        """Follows the run until it is over, and tells the tracker then."""
        failed = self._fails(self._following.prepare)
        while not self._over:
            self._wake.wait(AGAIN_S if failed else None)
            self._wake.clear()
            if self._begun:
                failed = self._fails(self._following.catch_up)
        if self._begun and not self._fails(self._following.catch_up):
            self._fails(self._following.end)

    def stop(self) -> None:
        """Lets the thread come to its end."""
        self._over = True
        self._wake.set()

    def waited(self, deadline: float) -> None:
        """Waits for the thread until a moment of the monotonic clock; warns if it does not end."""
        self.join(max(0.0, deadline - time.monotonic()))
        if self.is_alive():
            self._warn(f"it did not come to its end in {END_S:.0f} s")

    def _fails(self, step: Any) -> bool:
        try:
            step()
        except Exception as error:  # the code of others; a run does not end because nobody can watch it
            self._warn(f"{type(error).__name__}: {error}")
            return True
        return False

    def _warn(self, reason: str) -> None:
        """Logs the first failure of a tracker."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "tracker %s fails, and is tried again while the run goes on; `top-server export` can do its work"
                " later: %s",
                self._name,
                visible(reason)[:_MOST_SHOWN],
            )


@contextlib.contextmanager
def tracked(
    journal: Journal, directory: RunDirectory, trackers: Sequence[tuple[Tracker, Any]], end_s: float = END_S
) -> Iterator[None]:
    """Lets trackers, each with its options, follow a run while the body plays it.

    Waits at the end for at most `end_s` seconds, for all of them together.
    """
    followers = [_Follower(part.name, Following(part, options, directory)) for part, options in trackers]
    stops = [journal.subscribe(follower.note) for follower in followers]
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        for stop in stops:
            stop()
        for follower in followers:
            follower.stop()
        deadline = time.monotonic() + end_s
        for follower in followers:
            follower.waited(deadline)
