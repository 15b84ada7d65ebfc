"""Records what happens in a run: writes events and history to disk, and passes them to subscribers."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from io import FileIO
from typing import Any, Protocol

from fedgsp.errors import ConfigError, RunError, not_written
from fedgsp.files import appending
from fedgsp.times import stamp
from top_server.record.directory import RunDirectory, lock, usable
from top_server.record.events.base import Event
from top_server.record.events.rounds import RoundFinished
from top_server.record.history import plain, to_line
from top_server.record.room import waiting_for_room

logger = logging.getLogger(__name__)

#: An event as it stands in events.jsonl: "time" (ISO 8601, UTC), "event" (its kind), and its fields.
Line = dict[str, Any]
Subscriber = Callable[[Line], None]


class Recorder(Protocol):
    """The protocol of an object that records events."""

    def record(self, event: Event) -> None:
        """Records an event."""


class Journal(contextlib.AbstractContextManager["Journal"]):
    """Writes events.jsonl and history.jsonl of a run directory, line by line, until its `with` block ends.

    Only one thread may use it.
    """

    def __init__(self, directory: RunDirectory, now: Callable[[tzinfo], datetime] = datetime.now) -> None:
        with usable(directory, "the record in"):
            # Unbuffered: if the disk is full, a buffer would keep the bytes and fail again when the file is closed.
            self._events = appending(directory.events)
            try:
                self._history = appending(directory.history)
            except OSError:
                self._events.close()
                raise
        try:
            lock(self._events, directory)
        except ConfigError:
            self.__exit__()
            raise
        self._now = now
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with every later event; call the returned function to end that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber) if subscriber in self._subscribers else None

    def record(self, event: Event) -> None:
        """Writes an event and passes it to the subscribers; raises RunError if it cannot be written."""
        line: Line = plain({"time": stamp(self._now(UTC)), "event": event.kind(), **event.fields})
        _append(self._events, line)
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(line)
            except Exception:  # a run does not end because somebody cannot watch it
                logger.exception("a subscriber failed at %s and gets no more events", event.kind())
                self._subscribers.remove(subscriber)

    def finish_round(self, row: RoundFinished) -> Line:
        """Writes the row of a round to the history, and its event; returns the row. RunError if that fails."""
        columns: Line = plain(row.fields)
        _append(self._history, columns)
        self.record(row)
        return columns

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._history.close()


def _append(file: FileIO, line: Mapping[str, Any]) -> None:
    """Writes a line, or nothing: the next line must not continue a torn one."""
    rest, end = to_line(line).encode(), os.fstat(file.fileno()).st_size
    try:
        while rest:
            rest = rest[_write(file, rest) :]
    except RunError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise


@waiting_for_room
def _write(file: FileIO, data: bytes) -> int:
    try:
        return file.write(data)
    except OSError as error:
        raise not_written(file.name, error) from error
