"""Whether a process records a run at this moment, as far as that can be seen from another process."""

import contextlib
import os
from pathlib import Path

from fedgsp.files import put, read_file
from top_server.record.directory import RunDirectory

_LOCKS = Path("/proc/locks")
#: In the folder of the logs: where the top server runs.
_MACHINE = "machine"


def note_machine(directory: RunDirectory) -> None:
    """Notes from where the lock of this process on the record of a run can be seen: nowhere, if not from here.

    It is not seen if the system has no /proc/locks, or if the file system has no locks, or other numbers there.
    """
    note = b"nowhere\n"
    with contextlib.suppress(OSError):
        note = _here() if _is_locked(directory.events) else note
    with contextlib.suppress(OSError):  # the note is a help only
        directory.logs.mkdir(exist_ok=True)
        put(directory.logs / _MACHINE, note)


def is_recorded(directory: RunDirectory) -> bool | None:
    """Whether a process has the lock of a record, as a top server does while it records; None if nobody knows.

    The lock is not tried: for that moment a top server could not begin there.
    """
    try:
        if _is_locked(directory.events):
            return True
    except FileNotFoundError:
        return None if not _LOCKS.exists() else False
    except OSError:
        return None
    try:
        return False if read_file(directory.logs / _MACHINE) == _here() else None
    except FileNotFoundError:  # the record of an earlier version
        return False
    except OSError:
        return None


def _here() -> bytes:
    """This machine, and its processes that see each other's locks; raises OSError. It is the same after a restart."""
    return f"{os.uname().nodename} {os.stat('/proc/self/ns/pid').st_ino}\n".encode()


def _is_locked(events: Path) -> bool:
    """Whether a process that can be seen from here has the lock of a file; raises OSError."""
    status = os.stat(events)
    locks = _LOCKS.read_text(encoding="ascii", errors="replace")
    # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1048577 0 EOF
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(words[1:2] == ["FLOCK"] and place in words for words in map(str.split, locks.splitlines()))
