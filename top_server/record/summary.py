"""Writes summary.json when all rounds are done: the figures of each client."""

import json
from collections.abc import Mapping, Sequence

from fedgsp.errors import not_written
from top_server.best import Best, chosen_by_validation
from top_server.record.directory import RunDirectory
from top_server.record.events.base import ABSENT
from top_server.record.events.run import ClientsServed
from top_server.record.figures import summarise
from top_server.record.history import read_lines
from top_server.record.journal import Journal

_SPREAD = ("mean", "std", "min", "max")


def write_summary(
    directory: RunDirectory,
    journal: Journal,
    names: Mapping[int, str],
    best: Best | None = None,
    ends: Sequence[int] = (),
) -> None:
    """Writes the summary of the history, if that has figures of clients, or validation has chosen the `best` round.

    `names` are what people call clients, and `ends` the numbers of rounds after which the run was finished and then
    extended. Raises RunError if the disk is full.
    """
    rows = read_lines(directory.history)
    summary = {**(summarise(rows, names) or {}), **chosen_by_validation(rows, best or Best())}
    if not summary:
        return
    if ends:
        summary["extended_after"] = list(ends)
    try:
        directory.summary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise not_written(directory.summary, error) from error
    if spread := {name: summary["last"][name] for name in _SPREAD if name in summary.get("last", {})}:
        journal.record(ClientsServed(**spread, scored_by=summary.get("scored_by", ABSENT)))
