"""What the files of a run directory beside the audit log say about the run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import DataError
from fedgsp.files import parse_toml, read_text
from fedgsp.visible import visible
from top_server.findings import whole
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

#: Events at which a top server begins with rounds, and the event after the last round.
BEGINS, ENDS = ("run_started", "run_resumed"), "run_finished"


def is_finished(events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the last round that a run was to have is over, by its events."""
    told = [event["event"] for event in events if event.get("event") in (*BEGINS, ENDS)]
    return told[-1:] == [ENDS]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is compared with the audit log."""

    runs: frozenset[str]
    done: bool
    #: The last round.
    last: int
    tls: bool


def recorded(directory: RunDirectory) -> Recorded:
    """Reads events.jsonl, history.jsonl and config.toml; raises DataError if one of them cannot be read."""
    events, rows = read_lines(directory.events), read_lines(directory.history)
    try:
        last = max((whole(row.get("round", 0)) for row in rows), default=0)
    except ValueError as error:
        raise DataError(f"{directory.history}: {visible(str(error))}", "restore the file") from None
    try:
        settings = parse_toml(read_text(directory.config))
    except (OSError, ValueError) as error:
        raise DataError(f"{directory.config} cannot be read: {error}", "restore the file") from None
    return Recorded(
        frozenset(str(event.get("run")) for event in events if event.get("event") in BEGINS),
        is_finished(events),
        last,
        not settings.keys().isdisjoint(("tls_ca", "federation")),
    )
