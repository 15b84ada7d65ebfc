"""A tracker that appends lines of JSON to a file."""

from __future__ import annotations

import json
from pathlib import Path

from top_server.tracking.base import About, Outcome, Points, Tracking

from .declared import LinesOptions


class Lines(Tracking):
    """One line for each round, and one for the end."""

    def __init__(self, options: LinesOptions) -> None:
        self._to = options.to
        self._digits = options.digits
        self._path = Path()

    def begin(self, about: About) -> int:
        """Says how many rounds the file has."""
        self._path = self._to or about.directory / "lines.jsonl"
        if not self._path.exists():
            return 0
        told = [json.loads(line) for line in self._path.read_text().splitlines()]
        return max((line.get("round", 0) for line in told), default=0)

    def add(self, points: Points) -> None:
        """Appends the round."""
        values = {name: round(value, self._digits) for name, value in points.values.items()}
        self._append({"round": points.round, **values})

    def end(self, outcome: Outcome) -> None:
        """Appends the end."""
        self._append({"outcome": outcome.kind})

    def _append(self, line: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
