"""Records what happens in a run: writes events and history to disk, and passes them to subscribers."""

import contextlib
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from io import FileIO
from typing import Any, Protocol

from fedgsp.errors import ConfigError, RunError, not_written
from fedgsp.files import appending, check_line
from fedgsp.times import stamp
from top_server.record.directory import RunDirectory, lock, usable
from top_server.record.events.base import Event
from top_server.record.events.rounds import RoundFinished
from top_server.record.events.run import FieldsLeftOut
from top_server.record.history import plain
from top_server.record.room import waiting_for_room
from top_server.record.short import short

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
        #: (kind, field) of what was left out so far.
        self._left_out: set[tuple[str, str]] = set()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with every later event; call the returned function to end that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber) if subscriber in self._subscribers else None

    def record(self, event: Event) -> None:
        """Writes an event and passes it to the subscribers; raises RunError if it cannot be written."""
        whole: Line = plain({"time": stamp(self._now(UTC)), "event": event.kind(), **event.fields})
        line = self._append(self._events, event, whole)
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(line)
            except Exception:  # a run does not end because somebody cannot watch it
                logger.exception("a subscriber failed at %s and gets no more events", event.kind())
                self._subscribers.remove(subscriber)

    def finish_round(self, row: RoundFinished) -> Line:
        """Writes the row of a round to the history, and its event; returns the row. RunError if that fails.

        A row that is too long lacks columns in the record, but not what is returned.
        """
        columns: Line = plain(row.fields)
        self._append(self._history, row, columns)
        self.record(row)
        return columns

    def _append(self, file: FileIO, event: Event, whole: Line) -> Line:
        """Writes the line of an event, as far as it is not too long; returns what was written."""
        line, text, left_out, size = short(whole, event.may_lack)
        _append(file, text)
        if new := [name for name in left_out if (event.kind(), name) not in self._left_out]:
            self._left_out.update((event.kind(), name) for name in new)
            reason = f"with a value for each client, the line would have {size:,} bytes"
            self.record(FieldsLeftOut(kind_of_event=event.kind(), left_out=new, reason=reason))
        return line

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._history.close()


def _append(file: FileIO, text: str) -> None:
    """Writes a line, or nothing: the next line must not continue a torn one."""
    rest, end = text.encode(), os.fstat(file.fileno()).st_size
    check_line(file.name, rest)
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
