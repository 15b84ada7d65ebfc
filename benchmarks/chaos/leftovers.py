"""What a run left behind: processes, ports and files that should be gone."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

#: Every process of a run has this in its environment, and hands it on to those that it starts.
VARIABLE = "FEDGSP_CHAOS_MARK"
GRACE_S = 5.0
UNFINISHED = ("*.writing", "*.tmp", "*.part", "tmp*")


def is_ours(pid: int, mark: str) -> bool:
    """Whether a process lives, and carries the mark."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(VARIABLE) == mark)
    except psutil.Error:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that carry a mark."""
    return [process for process in psutil.process_iter() if is_ours(process.pid, mark)]


def find(folder: Path, run_dir: Path, mark: str) -> list[str]:
    """Everything that is left of a run; processes get a little time to end."""
    deadline = time.monotonic() + GRACE_S
    while (processes := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [f"a process: {_described(process)}" for process in processes]
    ours = {process.pid for process in processes}
    with contextlib.suppress(psutil.AccessDenied):
        listening = [socket for socket in psutil.net_connections("tcp") if socket.status == psutil.CONN_LISTEN]
        found += [f"a port: {socket.laddr.port} of {socket.pid}" for socket in listening if socket.pid in ours]
    # The state of clients is meant to stay, as the record of the run is; what is written aside is not.
    kept = (run_dir, *folder.glob("state-*"))
    unfinished = {path for place in kept for pattern in UNFINISHED for path in place.rglob(pattern)}
    unfinished |= set((folder / "tmp").glob("*"))
    return found + [f"a file: {path.relative_to(folder)}" for path in sorted(unfinished)]


def _described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline()[1:6])}"
    return str(process.pid)
