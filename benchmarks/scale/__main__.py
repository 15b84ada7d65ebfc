"""Measures how the time of a round follows the number of machines, and holds a model of the round against it:

    python -m benchmarks.scale --out scale.json [--machines 2,4] [--predict 1000]

Machines are network namespaces of this machine, each with four nodes, behind links of 1 Gbit/s to one switch. All
connections between them use TLS. 368 clients form 16 groups, which stay the same; all groups train in each round. A
training lasts one second and uses no processor, because all machines share those of one. The model has 16 MB. Relays
and parallel groups are played, with group managers beside the top server and on the machines of nodes.

The parts of the model (`model.py`) are measured on the smallest number of machines: a hop, in a run with one chain,
and what a round takes beyond the model. The other numbers of machines are then predicted. This needs Linux and root.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.performance.runs import IDLE_TASK
from benchmarks.scale.model import SAME_MACHINE, SAME_NODE, Layout, Parts, parallel_s, relay_s
from benchmarks.scale.network import HUB, address, namespace, switched, why_not
from fedgsp.children import tail
from top_server.placing.workers import number_of
from top_server.record.history import read_lines

ROOT = Path(__file__).resolve().parents[2]
NODES_PER_MACHINE, CLIENTS, GROUPS, ROUNDS = 4, 368, 16, 3
#: Clients of the one chain that shows what a hop takes.
CHAIN = 92
TRAINING_S, PARAMETERS, MBIT = 1.0, 4_000_000, 1000.0
TIMEOUT_S = 900.0
#: Clients of each machine where the model alone speaks, and groups.
CLIENTS_PER_MACHINE, GROUP_SIZE = CLIENTS // 4, CLIENTS // GROUPS
Event = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    machines: int
    program: str
    placed: bool
    clients: int = CLIENTS
    groups: int = GROUPS
    rounds: int = ROUNDS

    @property
    def layout(self) -> Layout:
        """Where its clients are."""
        return Layout.of(self.clients, NODES_PER_MACHINE * self.machines, self.machines)


def entry_point(folder: Path) -> None:
    """Makes the place known, as an installed package does."""
    about = folder / "fedgsp_scale-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fedgsp-scale\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[fedgsp.places]\nmachines = benchmarks.scale.place:PLACE\n")


def play(case: Case) -> Sequence[Event]:
    """Plays a run and returns its events; RuntimeError if it does not finish."""
    with tempfile.TemporaryDirectory() as name, switched(case.machines, MBIT) as tag:
        folder = Path(name)
        entry_point(folder)
        options = {"tag": tag, "machines": case.machines, "host": address(HUB)}
        task = {"clients": case.clients, "parameters": PARAMETERS, "seconds": TRAINING_S}
        command = [
            *("ip", "netns", "exec", namespace(HUB, tag), sys.executable, "-m", "top_server", "--json"),
            *("--run-dir", str(folder / "run"), "--place", "machines"),
            *("--workers", str(NODES_PER_MACHINE * case.machines), "--clients", str(case.clients)),
            *(word for key, value in options.items() for word in ("--place-option", f"{key}={value}")),
            *("--task", IDLE_TASK, "--optimizer", "sgd", "--learning-rate", "0.01"),
            *(word for key, value in task.items() for word in ("--task-option", f"{key}={value}")),
            *("--scheme", "naive-gsp", "--beta", str(case.groups), "--sampling-rate", "1"),
            *("--program", case.program, "--rounds", str(case.rounds), "--evaluate-every", "1000"),
            *(["--place-managers"] if case.placed else []),
        ]
        path = os.pathsep.join([str(folder), str(ROOT)])
        with (folder / "log").open("ab") as log:
            env = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=log, env=env, timeout=TIMEOUT_S, check=False
            )
        if done.returncode:
            raise RuntimeError(f"the run ended with exit code {done.returncode}: {tail(folder / 'log')}")
        return read_lines(folder / "run" / "events.jsonl")


def seconds_between(first: Event, last: Event) -> float:
    """Seconds from one event to another."""
    return (datetime.fromisoformat(last["time"]) - datetime.fromisoformat(first["time"])).total_seconds()


def rounds_of(events: Sequence[Event]) -> list[float]:
    """Seconds from the begin of each round, but the first, to its last result."""
    begun = {event["round"]: event for event in events if event["event"] == "round_started"}
    ended = {event["round"]: event for event in events if event["event"] == "group_finished"}
    return [seconds_between(begun[number], ended[number]) for number in sorted(begun) if number > 1]


def groups_of(events: Sequence[Event]) -> list[list[int]]:
    """The groups of the last round, each in the order of its clients."""
    return next(event["teams"] for event in reversed(events) if event["event"] == "round_started")


def managers_of(events: Sequence[Event], case: Case) -> list[int]:
    """The machine of the manager of each group: groups are dealt over managers in the order of their starts."""
    spawned = [event for event in events if event["event"] == "manager_spawned"]
    machines = [1 + number_of(one["node"]) % case.machines if "node" in one else HUB for one in spawned]
    return [machines[group % len(machines)] for group in range(case.groups)]


def hops(events: Sequence[Event], layout: Layout) -> dict[str, float]:
    """Median seconds of a hop of each kind, beyond the training, in a run with one chain."""
    found: dict[str, list[float]] = defaultdict(list)
    done = [event for event in events if event["event"] == "hop_finished" and event["round"] > 1]
    for before, event in itertools.pairwise(done):
        if event["position"] == before["position"] + 1:
            way = layout.way(before["client"], event["client"])
            found[way].append(event["turn"] - event["seconds"])
    return {way: statistics.median(took) for way, took in found.items()}


def predicted(case: Case, groups: Sequence[Sequence[int]], managers: Sequence[int], parts: Parts) -> float:
    """Seconds of a round by the model alone."""
    if case.program == "relay":
        return relay_s(groups, case.layout, parts)
    return parallel_s(groups, managers, case.layout, parts)


def alone(machines: int, program: str, placed: bool, parts: Parts, beyond_s: float) -> dict[str, Any]:
    """What the model says of a number of machines that nobody has measured."""
    clients = CLIENTS_PER_MACHINE * machines
    case = Case(machines, program, placed, clients, clients // GROUP_SIZE)
    order = sorted(range(clients), key=lambda client: (client * 2654435761) % 2**32)  # mixed, and always the same
    groups = [order[number :: case.groups] for number in range(case.groups)]
    managers = [1 + number % machines if placed else HUB for number in range(case.groups)]
    found = predicted(case, groups, managers, parts)
    return {"machines": machines, "clients": clients, "groups": case.groups, "predicted_s": found + beyond_s}


def measure(machines: Sequence[int], predict: int) -> dict[str, Any]:
    """Plays all runs, the smallest number of machines first."""
    chain = Case(machines[0], "relay", False, CHAIN, 1, 2)
    took = hops(play(chain), chain.layout)
    parts = Parts(TRAINING_S, {SAME_NODE: 0.0, SAME_MACHINE: 0.0, **took}, MBIT * 1e6 / 8, 4 * PARAMETERS)
    tell(f"hops: {took}")
    rows, beyond = [], dict[tuple[str, bool], float]()
    for number in machines:
        for program in ("relay", "parallel"):
            for placed in (False, True):
                case = Case(number, program, placed)
                events = play(case)
                seconds = rounds_of(events)
                by_model = predicted(case, groups_of(events), managers_of(events, case), parts)
                rest = beyond.setdefault((program, placed), statistics.median(seconds) - by_model)
                row = {**dataclasses.asdict(case), "seconds": seconds, "model_s": by_model}
                rows.append({**row, "predicted_s": by_model + rest, "measured_here": number == machines[0]})
                tell(json.dumps(rows[-1]))
    return {
        "hops": took,
        "training_s": TRAINING_S,
        "model_bytes": parts.model_bytes,
        "mbit": MBIT,
        "beyond_s": [[program, placed, rest] for (program, placed), rest in beyond.items()],
        "rows": rows,
        "alone": [
            {"program": program, "placed": placed, **alone(predict, program, placed, parts, rest)}
            for (program, placed), rest in beyond.items()
        ],
    }


def tell(line: str) -> None:
    """Shows the progress."""
    sys.stderr.write(f"{datetime.now():%H:%M:%S} {line}\n")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--machines", default="2,4")
    parser.add_argument("--predict", type=int, default=1000, help="machines of which the model alone speaks")
    given = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    found = measure([int(number) for number in given.machines.split(",")], given.predict)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
