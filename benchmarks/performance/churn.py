"""Measures a top server with 10,000 clients, of which 1 % leave and return each second: rounds, memory and joins.

    python -m benchmarks.performance.churn [--processes 2 --nodes 10 --sampled 40 --percent 10]

Clients do not really train. A node hosts several clients and has its own connections. Many nodes share a process, so
that torch is in memory only a few times. A node leaves as if it were killed, and joins again a second later with all
its clients. A round has some hundreds of clients, drawn singly (FedAvg) or in 3 groups (FedGSP, constant growth).
There is one run per scheme: the first rounds are calm, the later rounds have churn. The figures do not include the
first round, the last round (the only round with an evaluation), and the rounds in which churn begins. The measure
takes 5 to 10 minutes on two idle cores.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

from benchmarks.performance import memory
from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import IDLE_TASK, MIB, ROOT, Run, RunFailedError, started
from top_server.record.history import read_lines

PARAMETERS = 10_000
GROUPS_SAMPLED = 3
TIMEOUT_S = 900.0
INTERVAL_S = 0.2
SIZES = {
    "processes": (10, "node processes"),
    "nodes": (100, "nodes in each of them"),
    "clients": (10, "clients of each node"),
    "sampled": (300, "clients that train in a round"),
    "percent": (1, "of the nodes, dropped in a second of churn"),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    processes: int
    nodes: int
    clients: int
    sampled: int
    percent: int

    @property
    def all_nodes(self) -> int:
        return self.processes * self.nodes

    @property
    def all_clients(self) -> int:
        return self.all_nodes * self.clients

    @property
    def task(self) -> list[str]:
        options = (f"clients={self.all_clients}", f"parameters={PARAMETERS}")
        return ["--task", IDLE_TASK, *(word for option in options for word in ("--task-option", option))]

    def scheme(self, name: str) -> list[str]:
        rate = ["--sampling-rate", str(self.sampled / self.all_clients)]
        if name == "fedavg":
            return ["--scheme", name, *rate]
        groups = max(1, GROUPS_SAMPLED * self.all_clients // self.sampled)
        return ["--scheme", name, *rate, "--growth", "constant", "--beta", str(groups)]


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of a run with churn."""

    rounds: int
    history: list[dict[str, Any]]
    calm: list[dict[str, Any]]
    churned: list[dict[str, Any]]
    #: Clients that joined per second: at the beginning, and with churn.
    first_joins: float
    joins: float
    #: Memory of the top server in bytes: before any node joined, and its peak.
    idle: int
    peak: int
    exit_codes: list[int]


@contextlib.contextmanager
def hosted(sizes: Sizes, address: str, output: IO[bytes]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A context with the processes of all nodes, which are ended with it."""
    command = [sys.executable, "-m", "benchmarks.performance.churn_nodes", "--top-server", address, *sizes.task]
    command += ["--nodes", str(sizes.nodes), "--clients", str(sizes.clients), "--share", str(sizes.percent / 100)]
    hosts = [
        subprocess.Popen(
            [*command, "--first", str(number * sizes.nodes)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=ROOT,
        )
        for number in range(sizes.processes)
    ]
    try:
        yield hosts
    finally:
        for host in hosts:
            if host.poll() is None:
                host.kill()
            host.wait()


def play(sizes: Sizes, scheme: str, repeats: int) -> Found:
    """Plays a run with `repeats` calm rounds and three times as many with churn; RunFailedError if it fails."""
    churned = 3 * repeats
    rounds = 1 + repeats + 1 + churned + 1
    flags = [*sizes.scheme(scheme), *sizes.task, "--rounds", str(rounds), "--evaluate-every", str(rounds)]
    flags += ["--min-nodes", str(sizes.all_nodes)]
    flags += ["--join-timeout", str(TIMEOUT_S / 2)]
    with started(flags) as run, (run.directory.parent / "nodes").open("wb") as output:
        _wait(run, lambda: run.events() != [])
        idle = memory.resident(run.process.pid)
        with hosted(sizes, run.events()[0]["address"], output) as hosts:
            _wait(run, lambda: len(_history(run)) > repeats)
            begin = _tell(hosts, "churn")
            _wait(run, lambda: len(_history(run)) > 1 + repeats + churned)
            end, peak = _tell(hosts, "calm"), 0

            def over() -> bool:
                nonlocal peak
                with contextlib.suppress(OSError):  # the process has ended
                    peak = memory.peak(run.process.pid)
                return all(process.poll() is not None for process in (run.process, *hosts))

            _wait(run, over)
            exit_codes = [process.returncode for process in (run.process, *hosts)]
        history, joins = _history(run), [event for event in run.events() if event["event"] == "node_joined"]
        first, later = joins[: sizes.all_nodes], joins[sizes.all_nodes :]
        took = _at(first[-1]) - _at(first[0])
        return Found(
            rounds,
            history,
            history[1 : 1 + repeats],
            history[2 + repeats : 2 + repeats + churned],
            sizes.clients * (len(first) - 1) / took,
            sizes.clients * sum(begin <= _at(event) < end for event in later) / (end - begin),
            idle,
            peak,
            exit_codes,
        )


def _history(run: Run) -> list[dict[str, Any]]:
    path = run.directory / "history.jsonl"
    return read_lines(path) if path.exists() else []


def _wait(run: Run, until: Callable[[], bool]) -> None:
    while not until():
        if time.monotonic() > run.begin + TIMEOUT_S:
            raise RunFailedError(f"the run did not finish in {TIMEOUT_S:.0f} s; {run.last_words()}")
        if run.process.poll():
            raise RunFailedError(f"exit code {run.process.returncode}; {run.last_words()}")
        run.know()
        time.sleep(INTERVAL_S)


def _tell(hosts: Sequence[subprocess.Popen[bytes]], order: str) -> float:
    """Sends an order to all host processes; returns the time after sending."""
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write(f"{order}\n".encode())
        host.stdin.flush()
    return time.time()


def _at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def rows(sizes: Sizes, scheme: str, found: Found) -> list[Row]:
    name = f"{scheme}, {sizes.all_clients:,} clients on {sizes.all_nodes:,} nodes"
    seconds = tuple(row["seconds"] for row in found.churned)
    calm = tuple(row["seconds"] for row in found.calm)
    skipped = tuple(float(row["clients_skipped"]) for row in found.churned)
    wanted = sizes.percent / 100 * sizes.all_clients
    per_client = (found.peak - found.idle) / sizes.all_clients / 1024
    bad = tuple(float(code != 0) for code in found.exit_codes)
    return [
        Row(f"round under churn, {name}", "s", seconds, 1.5, "calm rounds", calm),
        Row(f"clients skipped in a round under churn, {name}", "clients", skipped, 0.1 * sizes.sampled),
        Row(f"clients that join in a second of churn, {name}", "clients", (found.joins,), 0.8 * wanted, at_least=True),
        Row(
            f"clients that join in a second before round 1, {name}",
            "clients",
            (found.first_joins,),
            wanted,
            at_least=True,
        ),
        Row(f"rounds finished, {name}", "rounds", (float(len(found.history)),), found.rounds, at_least=True),
        Row(f"largest RSS of the top server, {name}", "MiB", (found.peak / MIB,), 512),
        Row(f"RSS of the top server above idle, per client, {name}", "KiB", (per_client,), 32),
        Row(f"processes with an exit code other than 0, of {len(bad)}, {name}", "processes", (sum(bad),), 0),
    ]


def measure(repeats: int, **sizes: int) -> list[Row]:
    chosen = Sizes(**sizes)
    return [row for scheme in ("fedgsp", "fedavg") for row in rows(chosen, scheme, play(chosen, scheme, repeats))]


if __name__ == "__main__":
    main(measure, __doc__ or "", sizes=SIZES)
