"""Remembers events instead of writing them."""

from __future__ import annotations

import asyncio
from typing import Any

from top_server.record.events.base import Event


class Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._recorded = asyncio.Event()

    def record(self, event: Event) -> None:
        self.events.append({"event": event.kind(), **event.fields})
        self._recorded.set()

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    async def until(self, kind: str) -> None:
        """Waits for the first event of a kind."""
        while not self.of_kind(kind):
            self._recorded.clear()
            await self._recorded.wait()
