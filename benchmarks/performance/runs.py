"""Plays runs as a user would, and measures the time of rounds or the memory of processes. This needs Linux.

Reading smaps walks page tables, which slows the processes. So a run is either timed, or its memory is watched.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.performance import memory
from fedgsp.processes.children import tail
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE
from top_server.record.history import read_lines

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
IDLE_TASK = "benchmarks.performance.idle_task:task"
FEDAVG = ("--scheme", "fedavg")
KINDS = {"top_server": "top server", "group_manager": "manager", "fedgsp_node": "node"}
INTERVAL_S = 0.05
STOP_GRACE_S = 15.0


def fedgsp_with(groups: int) -> tuple[str, ...]:
    """Flags for FedGSP with a number of groups that does not grow."""
    return ("--scheme", "fedgsp", "--beta", str(groups), "--growth", "linear", "--alpha", "0.0001")


ONE_GROUP = fedgsp_with(1)


class RunFailedError(Exception):
    """A run failed or took too long."""


@dataclass(slots=True)
class Process:
    """One process of a watched run: resident bytes when it was ready, and the peak afterwards."""

    kind: str
    name: str
    idle: int = 0
    peak: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """A finished run. If it was watched, it has the peak memory of all its processes together, in bytes.

    `peak_pss` counts shared pages once, `peak_private` does not count them.
    """

    #: Seconds of every round. The last round includes an evaluation, the first includes the start of group managers.
    seconds: tuple[float, ...]
    events: tuple[dict[str, Any], ...]
    processes: tuple[Process, ...]
    peak_pss: int
    peak_private: int

    @property
    def steady(self) -> tuple[float, ...]:
        """Seconds of the rounds without the first and the last."""
        return self.seconds[1:-1]


def idle_task(clients: int, parameters: int, seconds: float = 0.0) -> list[str]:
    """Flags for the task whose training costs almost nothing, and lasts for so many seconds."""
    options = {"clients": clients, "parameters": parameters, "seconds": seconds}
    given = [word for name, value in options.items() for word in ("--task-option", f"{name}={value}")]
    return ["--task", IDLE_TASK, *given, "--clients", str(clients)]


def play(flags: Sequence[str], rounds: int, timeout_s: float, nodes: int = 4, watch: bool = False) -> Played:
    """Plays a run in which all groups train and only the last round is evaluated; RunFailedError if it fails."""
    flags = [*flags, "--rounds", str(rounds), "--evaluate-every", "1000", "--sampling-rate", "1"]
    with started([*flags, "--local-nodes", str(nodes)]) as run:
        while run.process.poll() is None:
            if time.monotonic() > run.begin + timeout_s:
                raise RunFailedError(f"the run did not finish in {timeout_s:.0f} s; {run.last_words()}")
            if watch:
                run.sample()
            run.know()
            time.sleep(INTERVAL_S)
        if run.process.returncode:
            raise RunFailedError(f"exit code {run.process.returncode}; {run.last_words()}")
        seconds = tuple(row["seconds"] for row in read_lines(run.directory / "history.jsonl"))
        processes = tuple(process for process in run.processes.values() if process.idle)
        return Played(seconds, tuple(run.events()), processes, run.peak_pss, run.peak_private)


@contextlib.contextmanager
def joined(flags: Sequence[str], nodes: int, timeout_s: float = 120.0) -> Iterator[list[int]]:
    """A context with the process ids of joined nodes. Their top server waits for one more node, which never starts."""
    with started([*flags, "--local-nodes", str(nodes), "--min-nodes", str(nodes + 1)]) as run:
        while len([event for event in run.events() if event["event"] == "node_joined"]) < nodes:
            if run.process.poll() is not None or time.monotonic() > run.begin + timeout_s:
                raise RunFailedError(f"the nodes did not join; {run.last_words()}")
            time.sleep(INTERVAL_S)
        run.sample()
        yield [pid for pid, process in run.processes.items() if process.kind == "node"]


@dataclass(slots=True)
class Run:
    """A started top server, with the known facts about it and its children."""

    process: psutil.Popen
    directory: Path
    begin: float
    processes: dict[int, Process] = field(default_factory=dict)
    peak_pss: int = 0
    peak_private: int = 0
    known: set[psutil.Process] = field(default_factory=set)
    _looked: float = 0.0

    def events(self) -> list[dict[str, Any]]:
        """The events that the run has recorded so far."""
        path = self.directory / "events.jsonl"
        return read_lines(path) if path.exists() else []

    def last_words(self) -> str:
        """The last lines of its output."""
        return f"its output ends: {tail(self.directory.parent / 'output')}"

    def know(self) -> None:
        """Records the top server's children from time to time, so that they can be ended after a crash too."""
        if time.monotonic() > self._looked + 1:
            self._looked = time.monotonic()
            with contextlib.suppress(psutil.Error):
                self.known.update(self.process.children(recursive=True))

    def sample(self) -> None:
        """Adds up the present memory of the processes, and records that of each."""
        with contextlib.suppress(psutil.Error):
            self.known.update(self.process.children(recursive=True))
        total = private = 0
        for process in (self.process, *self.known):
            with contextlib.suppress(OSError, psutil.Error):
                total += memory.pss(process.pid)
                private += memory.uss(process.pid)
                if process.pid not in self.processes:
                    self._meet(process)
        self.peak_pss, self.peak_private = max(self.peak_pss, total), max(self.peak_private, private)
        ready = self._ready()
        for pid, found in self.processes.items():
            with contextlib.suppress(OSError):
                if found.idle:
                    found.peak = max(found.peak, memory.peak(pid))
                elif found.name in ready:
                    # Memory that was needed for the start, such as the task's first model, does not count for the run.
                    memory.begin_peak(pid)
                    found.idle = found.peak = memory.resident(pid)

    def _meet(self, process: psutil.Process) -> None:
        words = " ".join(process.cmdline()).split()  # of a forked process, one word has them all
        module = next((word for word in words if word in KINDS), None)
        if module is not None:
            name = words[words.index("--name") + 1] if "--name" in words else "top server"
            self.processes[process.pid] = Process(KINDS[module], name)

    def _ready(self) -> set[str]:
        if all(found.idle for found in self.processes.values()):
            return set()
        events = self.events()
        names = {event.get("node") or event.get("manager") for event in events if "address" in event}
        return {name for name in names if name} | ({"top server"} if events else set())


@contextlib.contextmanager
def started(flags: Sequence[str]) -> Iterator[Run]:
    """A context with a top server, which is ended with all its children."""
    with tempfile.TemporaryDirectory(prefix="performance-") as folder:
        directory = Path(folder, "run")
        with Path(folder, "output").open("wb") as output:
            process = psutil.Popen(
                [sys.executable, "-m", "top_server", *flags, "--listen", "127.0.0.1:0", "--run-dir", str(directory)],
                stdin=subprocess.PIPE,  # the lifeline: the top server ends when this process ends
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, LIFELINE_VARIABLE: "stdin"},
                start_new_session=True,
            )
        run = Run(process, directory, time.monotonic())
        try:
            yield run
        finally:
            _end(run)


def _end(run: Run) -> None:
    run._looked = 0.0
    run.know()
    left = [run.process, *run.known]
    with contextlib.suppress(psutil.Error):
        run.process.terminate()
    _, left = psutil.wait_procs(left, STOP_GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, STOP_GRACE_S)
    run.process.stdin.close()
