"""The rows of a history as pictures and reports keep them: a row may have megabytes of figures of single clients."""

from __future__ import annotations

from typing import Any

from top_server.record.scores import scores_of

Row = dict[str, Any]
Rows = list[Row]

#: Columns that no picture and no report shows.
_NEVER = ("metrics_per_client", "validation")
#: Columns of which they show the last value alone; `Curves` are read apart.
_ONCE = ("accuracy_per_client", "score_per_client")


class Kept:
    """The rows, without most figures of single clients."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self._scored: Row = {}
        self._partition: Any = None

    def add(self, row: Row) -> None:
        """Takes the next row, and may change it."""
        for name in _NEVER:
            row.pop(name, None)
        if scores_of(row):
            for name in _ONCE:
                self._scored.pop(name, None)
            self._scored = row
        row["partition"] = self._partition = shared(row.get("partition"), self._partition)
        self.rows.append(row)


def shared(groups: Any, before: Any) -> Any:
    """The groups of a round, which are those before in memory, too, if they are equal: groups last, as a rule."""
    return before if groups == before else groups
