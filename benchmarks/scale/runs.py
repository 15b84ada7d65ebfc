"""Plays runs over machines that are network namespaces, and measures their rounds and the processors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.performance.runs import idle_task
from benchmarks.scale.model import Layout
from benchmarks.scale.network import HUB, address, namespace, switched
from fedgsp.processes.children import tail
from top_server.record.history import read_lines

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, GROUPS, ROUNDS = 368, 16, 3
TIMEOUT_S = 900.0
#: How often the processors are looked at, in seconds.
LOOK_S = 0.5
Event = Mapping[str, Any]
#: What a processor does when it works for this machine.
_WORK = ("user", "nice", "system", "irq", "softirq")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    machines: int
    program: str
    placed: bool
    clients: int = CLIENTS
    groups: int = GROUPS
    rounds: int = ROUNDS
    nodes_per_machine: int = 4
    #: Rates of the links of machines and of the hub, in Mbit/s; 0: the hub has that of a machine.
    mbit: float = 1000.0
    hub_mbit: float = 0.0
    #: Size of the model, and seconds of a training.
    parameters: int = 4_000_000
    training_s: float = 1.0

    @property
    def layout(self) -> Layout:
        """Where its clients are."""
        return Layout.of(self.clients, self.nodes_per_machine * self.machines, self.machines)


def entry_point(folder: Path) -> None:
    """Makes the place known, as an installed package does."""
    about = folder / "fedgsp_scale-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fedgsp-scale\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[fedgsp.places]\nmachines = benchmarks.scale.place:PLACE\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """What a run has shown."""

    events: Sequence[Event]
    #: Pairs of a time (seconds since 1970) and the seconds that all processors of this machine had worked by then.
    worked: Sequence[tuple[float, float]]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Begin of each round, but the first, and the time of its last result."""
        begun = {event["round"]: event for event in self.events if event["event"] == "round_started"}
        ended = {event["round"]: event for event in self.events if event["event"] == "group_finished"}
        return [(time_of(begun[number]), time_of(ended[number])) for number in sorted(begun) if number > 1]

    @property
    def rounds(self) -> list[float]:
        """Seconds of each round, but the first."""
        return [end - begin for begin, end in self.spans]

    @property
    def processor_s(self) -> list[float]:
        """Seconds of work of all processors in each round, but the first."""
        times, work = np.array(self.worked).T
        return [float(np.diff(np.interp(span, times, work))[0]) for span in self.spans]


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[float, float]]]:
    """Looks at the processors while the body runs."""
    looks, over = list[tuple[float, float]](), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            times = psutil.cpu_times()
            looks.append((datetime.now().timestamp(), sum(getattr(times, kind) for kind in _WORK)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        over.set()
        thread.join()


def play(case: Case) -> Played:
    """Plays a run, while nothing else works on this machine; RuntimeError if it does not finish."""
    with tempfile.TemporaryDirectory() as name, switched(case.machines, case.mbit, case.hub_mbit) as tag:
        folder = Path(name)
        entry_point(folder)
        options = {"tag": tag, "machines": case.machines, "host": address(HUB)}
        command = [
            *("ip", "netns", "exec", namespace(HUB, tag), sys.executable, "-m", "top_server", "--json"),
            *("--run-dir", str(folder / "run"), "--place", "machines"),
            *("--workers", str(case.nodes_per_machine * case.machines)),
            *(word for key, value in options.items() for word in ("--place-option", f"{key}={value}")),
            *idle_task(case.clients, case.parameters, case.training_s),
            *("--optimizer", "sgd", "--learning-rate", "0.01"),
            *("--scheme", "naive-gsp", "--beta", str(case.groups), "--sampling-rate", "1"),
            *("--program", case.program, "--rounds", str(case.rounds), "--evaluate-every", "1000", "--wire", "raw"),
            *(["--place-managers"] if case.placed else []),
        ]
        path = os.pathsep.join([str(folder), str(ROOT)])
        with (folder / "log").open("ab") as log, watched() as looks:
            env = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=log, env=env, timeout=TIMEOUT_S, check=False
            )
        if done.returncode:
            raise RuntimeError(f"the run ended with exit code {done.returncode}: {tail(folder / 'log')}")
        return Played(read_lines(folder / "run" / "events.jsonl"), looks)


def time_of(event: Event) -> float:
    """The time of an event, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()
