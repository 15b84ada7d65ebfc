"""Every event of a run, one class each: the source of events.jsonl, of docs/events.md, and of resuming.

The name of a class is the kind of its events in another spelling: `HopFinished` is `hop_finished`. The docstring says
when the event happens, and each field says what it holds.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from top_server.record.events import alone, evidence, processes, rounds, run
from top_server.record.events.base import Event


def _events_of(module: ModuleType) -> tuple[type[Event], ...]:
    classes = (found for found in vars(module).values() if isinstance(found, type) and issubclass(found, Event))
    return tuple(found for found in classes if found.__module__ == module.__name__)


#: The sections of docs/events.md, and the events of each in the order of their definition.
SECTIONS: dict[str, tuple[type[Event], ...]] = {
    "The run": _events_of(run),
    "Nodes and managers": _events_of(processes),
    "Before a round": _events_of(evidence),
    "A round": _events_of(rounds),
    "Compared with training alone": _events_of(alone),
}
#: Kind -> class.
KINDS: dict[str, type[Event]] = {event.kind(): event for events in SECTIONS.values() for event in events}


def read(line: Mapping[str, Any]) -> Event | None:
    """The event of a line of events.jsonl; None for an unknown kind, KeyError if the line lacks a field."""
    kind = KINDS.get(line["event"])
    return kind.read(line) if kind is not None else None
