"""Measures how fast rounds of FedAvg are simulated on FEMNIST's writers, beside pfl (pfl-research):

    python -m benchmarks.simulation femnist.npz --pfl ENVIRONMENT/bin/python

All 1,500 writers are clients, and each round trains a cohort of them: the same model, batches of 5, one epoch, SGD,
one machine. Ours has a node for each core, with one thread each. pfl has one process, once with one thread and once
with a thread for each core. Both read the data of a client when it trains. In turn, so that other work of the machine
meets both. Seconds are those of rounds without the first one; memory is the peak of all processes together (PSS).

ENVIRONMENT has pfl 0.6.0 and what FedGSP needs: `pip install pfl==0.6.0` in a copy of this project's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.processes import CaseError, Processes, tree
from benchmarks.peers.results import MEMORY_MIB
from fedgsp.processes.children import tail
from top_server.record.history import read_lines

ROOT = Path(__file__).resolve().parents[1]
WRITERS = 1500
TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Samples per second in each round but the first, and the peak of memory in MiB."""

    rates: list[float]
    peak_mib: float


def _watched(command: list[str], folder: Path) -> tuple[str, float]:
    """The output of a program, and the peak of memory of all its processes, in MiB."""
    log = folder / "log"
    with Processes(TIMEOUT_S, MEMORY_MIB) as processes:
        pid = processes.start(command, log, {"OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)})
        try:
            processes.watch(lambda: not tree(pid))
        except CaseError as error:
            raise RuntimeError(f"{command[2]}: {error}; its output ends: {tail(log)}") from None
    return log.read_text(), processes.peak_mib


def ours(data: Path, model: str, cohort: int, rounds: int) -> Simulated:
    """A run of FedAvg with a node for each core."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "top_server", "--scheme", "fedavg", "--task", "femnist"),
            *("--task-option", f"data={data.absolute()}", "--task-option", f"model={model}"),
            *("--clients", str(WRITERS), "--sampling-rate", str(cohort / WRITERS), "--local-nodes", str(cores)),
            *("--rounds", str(rounds), "--batch-size", "5", "--learning-rate", "0.01", "--evaluate-every", "1000"),
            *("--run-dir", str(run), "--listen", "127.0.0.1:0"),
        ]
        _, peak = _watched(command, Path(folder))
        samples: defaultdict[int, int] = defaultdict(int)
        for event in read_lines(run / "events.jsonl"):
            if event["event"] == "hop_finished":
                samples[event["round"]] += event["samples"]
        rows = read_lines(run / "history.jsonl")
    # The last round has an evaluation of all clients.
    return Simulated([samples[row["round"]] / row["seconds"] for row in rows[1:-1]], peak)


def pfl(python: Path, data: Path, model: str, cohort: int, rounds: int, threads: int) -> Simulated:
    """The same with pfl, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(python), "-m", "benchmarks.peers.pfl_simulation", str(data.absolute()), "--model", model),
            *("--cohort", str(cohort), "--rounds", str(rounds), "--threads", str(threads)),
        ]
        said, peak = _watched(command, Path(folder))
    found = json.loads(said.splitlines()[-1])
    rates = [count / seconds for count, seconds in zip(found["samples"], found["seconds"], strict=True)]
    return Simulated(rates[1:-1], peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pfl", type=Path, required=True, help="the Python of an environment with pfl")
    parser.add_argument("--cohort", type=int, default=150, help="clients that train in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="small,leaf")
    flags = parser.parse_args()
    sys.stdout.write("| model | system | samples/s | peak, MiB | samples/s against ours |\n|---|---|---|---|---|\n")
    cores = len(os.sched_getaffinity(0))
    for model in flags.models.split(","):
        mine = ours(flags.data, model, flags.cohort, flags.rounds)
        rows = [(f"ours, {cores} nodes of one thread", mine)]
        for threads in sorted({1, cores}):
            found = pfl(flags.pfl, flags.data, model, flags.cohort, flags.rounds, threads)
            rows.append((f"pfl, threads: {threads}", found))
        for system, found in rows:
            low, middle, high = min(found.rates), statistics.median(found.rates), max(found.rates)
            ratio = middle / statistics.median(mine.rates)
            rate = f"{middle:,.0f} ({low:,.0f} - {high:,.0f})"
            sys.stdout.write(f"| {model} | {system} | {rate} | {found.peak_mib:,.0f} | {ratio:.2f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
