"""Finds processes, ports and files that remain after a run and should not."""

from __future__ import annotations

import contextlib
import getpass
import time
from pathlib import Path

import psutil

from fedgsp.security import local_key

#: Name of the environment variable with the mark of a run. Processes pass it on to their children.
VARIABLE = "FEDGSP_CHAOS_MARK"
GRACE_S = 5.0
UNFINISHED = ("*.writing", "*.tmp", "*.part", "tmp*")


def is_ours(pid: int, mark: str) -> bool:
    """Whether a process is alive and has the mark in its environment."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(VARIABLE) == mark)
    except psutil.Error:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """The living processes with a mark in their environment."""
    return [process for process in psutil.process_iter() if is_ours(process.pid, mark)]


def find(folder: Path, run_dir: Path, mark: str) -> list[str]:
    """Everything that remains of a run, as lines of text. Processes get a little time to end."""
    deadline = time.monotonic() + GRACE_S
    while (processes := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [f"process runs: {_described(process)}" for process in processes]
    ours = {process.pid for process in processes}
    with contextlib.suppress(psutil.AccessDenied):
        listening = [socket for socket in psutil.net_connections("tcp") if socket.status == psutil.CONN_LISTEN]
        found += [f"port {socket.laddr.port} open in {socket.pid}" for socket in listening if socket.pid in ours]
    # The state of clients and the record of the run should remain; temporary files should not.
    kept = (run_dir, *folder.glob("state-*"))
    unfinished = {path for place in kept for pattern in UNFINISHED for path in place.rglob(pattern)}
    # The folder of the user's keys remains for the next run; no key does. Torch makes an empty one when it imports its
    # compiler, which optimisers need.
    remain = (local_key.folder().name, f"torchinductor_{getpass.getuser()}")
    unfinished |= {
        path for path in (folder / "tmp").rglob("*") if path.parent != folder / "tmp" or path.name not in remain
    }
    return found + [f"unfinished file: {path.relative_to(folder)}" for path in sorted(unfinished)]


def _described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline()[1:6])}"
    return str(process.pid)
