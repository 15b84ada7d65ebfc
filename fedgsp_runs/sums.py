"""What all rows of a history say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from top_server.record.directory import RunDirectory
from top_server.record.history import lines_of
from top_server.record.scores import score_of


@dataclass
class Sums:
    """Sums over the rows, and the last figures. One row is in memory at a time: it may have megabytes."""

    rounds: int = 0
    seconds: float = 0.0
    #: Trainings of clients.
    skipped: int = 0
    #: Rounds that were evaluated.
    evaluated: int = 0
    #: After the last evaluation; None before the first one.
    score: float | None = None
    loss: float | None = None
    #: The score of the task, by the last row; empty if accuracy rates the models.
    scored_by: str = ""

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes the next row."""
        self.rounds += 1
        self.seconds += row.get("seconds") or 0
        self.skipped += int(row.get("clients_skipped") or 0)
        self.evaluated += bool(row.get("clients_evaluated"))
        self.score = self.score if (score := score_of(row)) is None else score
        self.loss = self.loss if (loss := row.get("loss")) is None else loss
        self.scored_by = str(row.get("scored_by") or "")


def sums_of(directory: RunDirectory) -> Sums:
    """The sums over the history of a run; raises DataError, and one of `MALFORMED` for damaged rows."""
    found = Sums()
    for row in lines_of(directory.history):
        found.add(row)
    return found
