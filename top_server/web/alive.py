"""Whether a process records a run now."""

import os
from pathlib import Path

_LOCKS = Path("/proc/locks")


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
