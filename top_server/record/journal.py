"""Records what happens in a run: writes events and history to disk, and passes them to subscribers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fedgsp.errors import ConfigError, not_written
from top_server.record.directory import RunDirectory, lock, unusable
from top_server.record.events.base import Event
from top_server.record.events.rounds import RoundFinished
from top_server.record.history import plain, to_line

logger = logging.getLogger(__name__)

#: An event as it stands in events.jsonl: "time" (ISO 8601, UTC), "event" (its kind), and its fields.
Line = dict[str, Any]
Subscriber = Callable[[Line], None]


class Recorder(Protocol):
    """The protocol of an object that records events."""

    def record(self, event: Event) -> None:
        """Records an event."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Journal:
    """Writes events.jsonl and history.jsonl of a run directory, line by line. Only one thread may use it."""

    def __init__(self, directory: RunDirectory, now: Callable[[], datetime] = _utc_now) -> None:
        try:
            self._events, self._history = _open(directory.events), _open(directory.history)
        except OSError as error:
            raise unusable(directory, "the record in", error) from None
        try:
            lock(self._events, directory)
        except ConfigError:
            self.close()
            raise
        self._now = now
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with every later event; call the returned function to end that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber) if subscriber in self._subscribers else None

    def record(self, event: Event) -> None:
        """Writes an event and passes it to the subscribers; raises RunError if the disk is full."""
        time = self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: Line = plain({"time": time, "event": event.kind(), **event.fields})
        _append(self._events, line)
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(line)
            except Exception:  # a run does not end because somebody cannot watch it
                logger.exception("a subscriber failed at %s and gets no more events", event.kind())
                self._subscribers.remove(subscriber)

    def finish_round(self, row: RoundFinished) -> Line:
        """Writes the row of a round to the history, and its event; returns the row. RunError if the disk is full."""
        columns: Line = plain(row.fields)
        _append(self._history, columns)
        self.record(row)
        return columns

    def close(self) -> None:
        """Closes both files. Nothing can be recorded afterwards."""
        self._events.close()
        self._history.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(path: Path) -> FileIO:
    # Unbuffered: if the disk is full, a buffer would keep the bytes and fail once more when the file is closed.
    return path.open("ab", buffering=0)


def _append(file: FileIO, line: Mapping[str, Any]) -> None:
    rest = to_line(line).encode()
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise not_written(file.name, error) from error
