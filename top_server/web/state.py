"""What the record of a run cannot say: whether a process writes it now, and whether there is room for that."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from top_server.record.directory import RunDirectory

_LOCKS = Path("/proc/locks")
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
    return State(is_recorded(directory.events), room(directory.path) < _LEAST_ROOM)


def room(path: Path) -> int:
    """The bytes that are free on the disk of a folder; many if nobody knows."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return _LEAST_ROOM


def is_recorded(events: Path) -> bool | None:
    """Whether a process holds the lock of this file, as a top server does while it records; None if nobody knows.

    The lock is not tried: for that moment a top server could not begin there.
    """
    try:
        status = os.stat(events)
        locks = _LOCKS.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None if not _LOCKS.exists() else False
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1048577 0 EOF
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(words[1:2] == ["FLOCK"] and place in words for words in map(str.split, locks.splitlines()))
