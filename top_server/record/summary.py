"""Writes summary.json when all rounds are done: the figures of each client."""

import json
from collections.abc import Mapping, Sequence

from top_server.absences import Absence
from top_server.best import Best, chosen_by_validation
from top_server.record.directory import RunDirectory
from top_server.record.events.base import ABSENT
from top_server.record.events.run import ClientsMissed, ClientsServed, MoreMissed
from top_server.record.figures import summarise
from top_server.record.history import lines_of
from top_server.record.journal import Journal
from top_server.record.room import write_text

_SPREAD = ("mean", "std", "min", "max")
#: Absences that are events at the end of a run; summary.json has all.
MOST_TOLD = 20


def write_summary(
    directory: RunDirectory,
    journal: Journal,
    names: Mapping[int, str],
    best: Best | None = None,
    ends: Sequence[int] = (),
    absences: Sequence[Absence] = (),
) -> None:
    """Writes the summary: figures of clients if the history has them, the `best` round if validation has chosen one.

    `names` are what people call clients, and `ends` the numbers of rounds after which the run was finished and then
    extended. `absences` say which clients missed rounds; they are told as events, too. Nothing is written if there is
    none of all that. Raises RunError if the disk is full.
    """
    summary = {
        **(summarise(lines_of(directory.history), names) or {}),
        **chosen_by_validation(lines_of(directory.history), best or Best()),
    }
    if absences:
        summary["absences"] = [absence.to_json() for absence in absences]
        _tell_absences(journal, absences)
    if ends:
        summary["extended_after"] = list(ends)
    if not summary:
        return
    write_text(directory.summary, json.dumps(summary, indent=1) + "\n")
    if spread := {name: summary["last"][name] for name in _SPREAD if name in summary.get("last", {})}:
        journal.record(ClientsServed(**spread, scored_by=summary.get("scored_by", ABSENT)))


def _tell_absences(journal: Journal, absences: Sequence[Absence]) -> None:
    for absence in absences[:MOST_TOLD]:
        why = absence.why
        journal.record(
            ClientsMissed(
                clients=absence.clients,
                first=absence.first,
                last=absence.last,
                code=why.code,
                reason=why.reason,
                seconds=ABSENT if why.seconds is None else why.seconds,
            )
        )
    if len(absences) > MOST_TOLD:
        journal.record(MoreMissed(absences=len(absences) - MOST_TOLD))
