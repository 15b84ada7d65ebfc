"""Plays runs as a user would, and reads what their rounds took and what memory their processes held. Linux.

Reading smaps walks page tables, which slows what is measured: a run is either timed or watched.
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
from fedgsp.lifecycle import LIFELINE_VARIABLE, tail
from top_server.record.history import read_lines

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
IDLE_TASK = "benchmarks.performance.idle_task:task"
FEDAVG = ("--scheme", "fedavg")
ONE_GROUP = ("--scheme", "fedgsp", "--beta", "1", "--growth", "linear", "--alpha", "0.0001")
KINDS = {"top_server": "top server", "group_manager": "manager", "fedgsp_node": "node"}
INTERVAL_S = 0.05
STOP_GRACE_S = 15.0


class RunFailedError(Exception):
    """A run that did not end as it should."""


@dataclass(slots=True)
class Process:
    """One process of a watched run: resident bytes when it was ready, and the most that it had after."""

    kind: str
    name: str
    idle: int = 0
    peak: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """A run that is over; `peak_pss` is the most bytes that all its processes held together, if it was watched."""

    #: Of every round. The last one's include an evaluation, the first one's the start of group managers.
    seconds: tuple[float, ...]
    events: tuple[dict[str, Any], ...]
    processes: tuple[Process, ...]
    peak_pss: int

    @property
    def steady(self) -> tuple[float, ...]:
        """Seconds of the rounds that only train: all but the first and the last."""
        return self.seconds[1:-1]


def idle_task(clients: int, parameters: int) -> list[str]:
    """Flags for a task whose training costs nothing."""
    return [
        *("--task", IDLE_TASK, "--task-option", f"clients={clients}", "--task-option", f"parameters={parameters}"),
        *("--clients", str(clients)),
    ]


def play(flags: Sequence[str], rounds: int, timeout_s: float, nodes: int = 4, watch: bool = False) -> Played:
    """Plays a run of all groups, evaluated only at its end; raises RunFailedError if it fails or takes too long."""
    flags = [*flags, "--rounds", str(rounds), "--evaluate-every", "1000", "--sampling-rate", "1"]
    with started([*flags, "--local-nodes", str(nodes)]) as run:
        while run.process.poll() is None:
            if time.monotonic() > run.begin + timeout_s:
                raise RunFailedError(f"not over after {timeout_s:.0f} s; {run.last_words()}")
            if watch:
                run.sample()
            run.know()
            time.sleep(INTERVAL_S)
        if run.process.returncode:
            raise RunFailedError(f"exit code {run.process.returncode}; {run.last_words()}")
        seconds = tuple(row["seconds"] for row in read_lines(run.directory / "history.jsonl"))
        processes = tuple(process for process in run.processes.values() if process.idle)
        return Played(seconds, tuple(run.events()), processes, run.peak_pss)


@contextlib.contextmanager
def joined(flags: Sequence[str], nodes: int, timeout_s: float = 120.0) -> Iterator[list[int]]:
    """The process ids of nodes that have joined a top server, which waits for one more that never comes."""
    with started([*flags, "--local-nodes", str(nodes), "--min-nodes", str(nodes + 1)]) as run:
        while len([event for event in run.events() if event["event"] == "node_joined"]) < nodes:
            if run.process.poll() is not None or time.monotonic() > run.begin + timeout_s:
                raise RunFailedError(f"the nodes did not join; {run.last_words()}")
            time.sleep(INTERVAL_S)
        run.sample()
        yield [pid for pid, process in run.processes.items() if process.kind == "node"]


@dataclass(slots=True)
class Run:
    """A top server that was started, and what is known of it and its children."""

    process: psutil.Popen
    directory: Path
    begin: float
    processes: dict[int, Process] = field(default_factory=dict)
    peak_pss: int = 0
    known: set[psutil.Process] = field(default_factory=set)
    _looked: float = 0.0

    def events(self) -> list[dict[str, Any]]:
        """What the run has recorded so far."""
        path = self.directory / "events.jsonl"
        return read_lines(path) if path.exists() else []

    def last_words(self) -> str:
        """The end of what it said."""
        return f"its output ends: {tail(self.directory.parent / 'output')}"

    def know(self) -> None:
        """Remembers, now and then, what the top server has started, for it to be ended also after a crash."""
        if time.monotonic() > self._looked + 1:
            self._looked = time.monotonic()
            with contextlib.suppress(psutil.Error):
                self.known.update(self.process.children(recursive=True))

    def sample(self) -> None:
        """Adds up what the processes hold now, and notes each one's own."""
        with contextlib.suppress(psutil.Error):
            self.known.update(self.process.children(recursive=True))
        total = 0
        for process in (self.process, *self.known):
            with contextlib.suppress(OSError, psutil.Error):
                total += memory.pss(process.pid)
                if process.pid not in self.processes:
                    self._meet(process)
        self.peak_pss = max(self.peak_pss, total)
        ready = self._ready()
        for pid, found in self.processes.items():
            with contextlib.suppress(OSError):
                if found.idle:
                    found.peak = max(found.peak, memory.peak(pid))
                elif found.name in ready:
                    # What it took to get ready, such as the task's making of a first model, is not the run's.
                    memory.begin_peak(pid)
                    found.idle = found.peak = memory.resident(pid)

    def _meet(self, process: psutil.Process) -> None:
        words = process.cmdline()
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
    """A top server, ended with the block together with all that it started."""
    with tempfile.TemporaryDirectory(prefix="performance-") as folder:
        directory = Path(folder, "run")
        with Path(folder, "output").open("wb") as output:
            process = psutil.Popen(
                [sys.executable, "-m", "top_server", *flags, "--listen", "127.0.0.1:0", "--run-dir", str(directory)],
                stdin=subprocess.PIPE,  # the lifeline: it leaves when this process does
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
