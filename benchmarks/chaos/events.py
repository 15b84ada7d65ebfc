"""Follows the events of a run: reads its events.jsonl while it grows, also after a restart of the top server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]

LOOK_EVERY_S = 0.02


def epoch(event: Event) -> float:
    """When an event was recorded, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


def presence(events: Iterable[Event]) -> dict[str, bool]:
    """Whether each node that these events name is there: it has joined, and has not left since."""
    return {
        event["node"]: event["event"] == "node_joined"
        for event in events
        if event["event"] in ("node_joined", "node_left")
    }


class Events:
    """The events of a run, oldest first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.all: list[Event] = []

    def look(self) -> list[Event]:
        """All events so far. A last line without a line end is not complete, and is left out."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().split(b"\n")[:-1]
            self._read += sum(len(line) + 1 for line in lines)
            self.all += [json.loads(line) for line in lines]
        return self.all

    def of_kind(self, *kinds: str, **fields: object) -> Iterator[Event]:
        """The events of these kinds, with these fields."""
        for event in self.all:
            if event["event"] in kinds and all(event.get(name) == value for name, value in fields.items()):
                yield event

    async def until(self, reached: Callable[[Events], bool]) -> None:
        """Waits until the events fulfil a condition."""
        while True:
            self.look()
            if reached(self):
                return
            await asyncio.sleep(LOOK_EVERY_S)
