"""What the files of a run directory beside the audit log say about the run."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import DataError, Refusal
from fedgsp.files import MOST_OF_SETTINGS, parse_toml, read_text
from fedgsp.visible import visible
from fedgsp.words import counted
from top_server.findings import Findings, whole
from top_server.grouping.request import ranges
from top_server.record.directory import RunDirectory
from top_server.record.history import lines_of

#: Events at which a top server begins with rounds, and the event after the last round.
BEGINS, ENDS = ("run_started", "run_resumed"), "run_finished"
_RESTORE = "restore the file from a copy"


def is_finished(events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the last round that a run was to have is over, by its events."""
    told = [event["event"] for event in events if event.get("event") in (*BEGINS, ENDS)]
    return told[-1:] == [ENDS]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is compared with the audit log."""

    runs: frozenset[str]
    done: bool
    #: The rounds of the history.
    rounds: tuple[int, ...]
    tls: bool
    #: The SHA-256 of config.toml.
    settings: str


def recorded(directory: RunDirectory) -> Recorded:
    """Reads events.jsonl, history.jsonl and config.toml; raises DataError if one of them cannot be read."""
    events = [event for event in lines_of(directory.events) if event.get("event") in (*BEGINS, ENDS)]
    try:
        rounds = tuple(whole(row.get("round", 0)) for row in lines_of(directory.history))
    except ValueError as error:
        raise DataError(f"{directory.history}: {visible(str(error))}", "restore the file") from None
    try:
        text = read_text(directory.config, MOST_OF_SETTINGS)
        settings = parse_toml(text)
    except (OSError, ValueError) as error:
        raise DataError(f"{directory.config} cannot be read: {error}", "restore the file") from None
    return Recorded(
        frozenset(str(event.get("run")) for event in events if event.get("event") in BEGINS),
        is_finished(events),
        rounds,
        not settings.keys().isdisjoint(("tls_ca", "federation")),
        hashlib.sha256(text.encode()).hexdigest(),
    )


def differences(found: Findings, record: Recorded) -> Iterator[tuple[bool, int, str]]:
    """(whether it is so, the line, the reason) for all that shows that a log is not the whole log of this run."""
    after = found.lines + 1
    yield not found.lines, after, "the log is empty"
    yield (
        bool(record.runs - {found.run}),
        after,
        f"the log is of run {found.run!r}, and events.jsonl of {', '.join(map(repr, record.runs))}",
    )
    unsigned = record.tls and found.certificate is None
    yield unsigned, after, "nothing is signed, although config.toml says that the run had TLS"
    yield record.done and not found.ended, after, "lines are missing at the end: events.jsonl has the end of the run"
    # A round is sealed after its row is written. A round that is played again after a cut may be sealed twice.
    sealed_later = 0 if record.done else max(record.rounds, default=0)
    unsealed = found.unsealed({*record.rounds} - {0, sealed_later})
    later = next((line for number, line in found.seals.items() if unsealed and number > unsealed[0]), after)
    where = "at the end" if later == after else "before it"
    yield bool(unsealed), later, f"lines are missing {where}: history.jsonl has {rounds_in_words(unsealed)}"
    yield found.whole and found.torn, after, "the last line is cut off"


def rounds_in_words(rounds: list[int]) -> str:
    """Rounds by their numbers, such as "round 3" or "rounds 3-4"."""
    return f"round{'s' if rounds[1:] else ''} {ranges(rounds)}"


def damages(found: Findings, record: Recorded, directory: RunDirectory) -> Iterator[Refusal]:
    """What shows that files beside a good log are not those of the run."""
    rounds = f"the audit log has {counted(found.rounds, 'round')}"
    yield found.rounds and not record.runs, f"{directory.events} has not the start of the run, and {rounds}", _RESTORE
    lost = found.rounds and record.done and not record.rounds
    yield lost, f"{directory.history} has no row, and {rounds}", _RESTORE
    # Settings are chosen after a run began. An earlier version did not tell them.
    told = found.whats["settled"] or found.whats["resumed"]
    other = told and found.settings and record.settings not in found.settings
    yield other, f"{directory.config} is not what the run had: the audit log has another SHA-256 of it", _RESTORE
