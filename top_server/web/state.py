"""What the record of a run cannot say: whether a process writes it now, and whether there is room for that."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from top_server.record.directory import RunDirectory
from top_server.record.machine import is_recorded

#: A disk with less room than this cannot take a row of the history, or a model.
_LEAST_ROOM = 1 << 14


@dataclass(frozen=True, slots=True)
class State:
    """How a run stands at this moment."""

    #: Whether its top server runs; None if nobody knows.
    lives: bool | None = None
    #: Whether its disk is full.
    full: bool = False


def state_of(directory: RunDirectory) -> State:
    """How a run stands now."""
    return State(is_recorded(directory), room(directory.path) < _LEAST_ROOM)


def room(path: Path) -> int:
    """The bytes that are free on the disk of a folder; many if nobody knows."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return _LEAST_ROOM
