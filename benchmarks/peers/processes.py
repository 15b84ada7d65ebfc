"""Measures, limits and ends the processes of one case. This needs Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

MIB = 2**20
_PR_SET_CHILD_SUBREAPER = 36


class CaseError(Exception):
    """A case failed. The message is its result."""


class LimitError(CaseError):
    """A case would exceed a limit."""


def pss(processes: Iterable[psutil.Process]) -> int:
    """Memory of the processes together, in bytes. Shared pages count once."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants; none if it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


class Processes:
    """All descendants of this process, with a deadline and a memory limit. All are ended with the context."""

    def __init__(self, seconds: float, limit_mib: float) -> None:
        self.peak_mib = 0.0
        self._deadline = time.monotonic() + seconds
        self._limit_mib = min(limit_mib, psutil.virtual_memory().available / MIB - 1024)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        # An orphaned descendant becomes a child of this process, so that it can be found.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def start(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str]) -> int:
        """Start a command with its output appended to the log, and return its number."""
        with log.open("ab") as output:
            started = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=log.parent,
                start_new_session=True,
            )
        self._started[f"{Path(command[0]).name} {started.pid}"] = started
        return started.pid

    def watch(self, done: Callable[[], bool], observe: Callable[[], None] = lambda: None) -> None:
        """Sample memory until done.

        Raises:
            LimitError: after the deadline, or above the memory limit.
            CaseError: if a command failed.
        """
        while not done():
            began = time.monotonic()
            used = pss(_below()) / MIB
            observe()
            self.peak_mib = max(self.peak_mib, used)
            self._check(used)
            # Reading smaps walks page tables. This uses at most a tenth of one core.
            time.sleep(max(0.1, 9 * (time.monotonic() - began)))

    def _check(self, used_mib: float) -> None:
        if time.monotonic() > self._deadline:
            raise LimitError("stopped at its time limit")
        if used_mib > self._limit_mib:
            raise LimitError(f"stopped at its memory limit of {self._limit_mib / 1024:.1f} GiB")
        for name, started in self._started.items():
            if started.poll():
                raise CaseError(f"{name} ended with {started.returncode}")

    def _kill(self) -> None:
        for kind, wait in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
            end = time.monotonic() + wait
            while time.monotonic() < end and (left := _below()):
                for process in left:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(kind)
                time.sleep(0.2)


def _below() -> list[psutil.Process]:
    """The living descendants."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive
