"""Measures how the time of a round follows the number of machines, and holds a model of the round against it:

    python -m benchmarks.scale --out scale.json [--machines 2,4]        # half an hour
    python -m benchmarks.scale --of scale.json [--predict 1000]         # the tables of a measurement

Machines are network namespaces of this machine, each with four nodes, behind links of 1 Gbit/s to one switch. All
connections between them use TLS. 368 clients form 16 groups, which stay the same; all groups train in each round. A
training lasts one second and uses no processor, because all machines share those of one. The model has 16 MB. Relays
and parallel groups are played, with group managers beside the top server and on the machines of nodes.

All models travel whole (`--wire raw`), because the machines share the processors that would code them.

The parts of the model (`model.py`) are measured on the smallest number of machines: a hop, in a run with one chain,
and what a round takes beyond the model. The other numbers of machines are then predicted. To measure needs Linux and
root.
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
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.performance.runs import idle_task
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
        command = [
            *("ip", "netns", "exec", namespace(HUB, tag), sys.executable, "-m", "top_server", "--json"),
            *("--run-dir", str(folder / "run"), "--place", "machines"),
            *("--workers", str(NODES_PER_MACHINE * case.machines)),
            *(word for key, value in options.items() for word in ("--place-option", f"{key}={value}")),
            *(*idle_task(case.clients, PARAMETERS, TRAINING_S), "--optimizer", "sgd", "--learning-rate", "0.01"),
            *("--scheme", "naive-gsp", "--beta", str(case.groups), "--sampling-rate", "1"),
            *("--program", case.program, "--rounds", str(case.rounds), "--evaluate-every", "1000", "--wire", "raw"),
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


def alone(machines: int, program: str, placed: bool, parts: Parts) -> tuple[Case, float]:
    """What the model says of a number of machines that nobody has measured, in seconds."""
    clients = CLIENTS_PER_MACHINE * machines
    case = Case(machines, program, placed, clients, clients // GROUP_SIZE)
    order = sorted(range(clients), key=lambda client: (client * 2654435761) % 2**32)  # mixed, and always the same
    groups = [sorted(order[number :: case.groups]) for number in range(case.groups)]  # naive-gsp goes by id
    managers = [1 + number % machines if placed else HUB for number in range(case.groups)]
    return case, predicted(case, groups, managers, parts)


def measure(machines: Sequence[int]) -> dict[str, Any]:
    """Plays all runs, the smallest number of machines first."""
    chain = Case(machines[0], "relay", False, CHAIN, 1, 2)
    of_kinds, rows = hops(play(chain), chain.layout), list[dict[str, Any]]()
    tell(f"hops: {of_kinds}")
    for number, program, placed in itertools.product(machines, ("relay", "parallel"), (False, True)):
        case = Case(number, program, placed)
        events = play(case)
        row = {**dataclasses.asdict(case), "seconds": rounds_of(events)}
        tell(json.dumps(row))
        rows.append({**row, "of_groups": groups_of(events), "managers_on": managers_of(events, case)})
    return {"hops": of_kinds, "rows": rows}


def tables(found: Mapping[str, Any], predict: int) -> Iterator[str]:
    """What was measured beside the model, and the model alone, as lines of Markdown."""
    parts = Parts(TRAINING_S, {SAME_NODE: 0.0, SAME_MACHINE: 0.0, **found["hops"]}, MBIT * 1e6 / 8, 4 * PARAMETERS)
    beyond = dict[tuple[str, bool], float]()
    yield "| machines | members | managers | round, s | by the model, s | predicted, s | error |"
    yield "|---|---|---|---|---|---|---|"
    for row in found["rows"]:
        case = Case(*(row[field.name] for field in dataclasses.fields(Case)))
        by_model = predicted(case, row["of_groups"], row["managers_on"], parts)
        took, kind = statistics.median(row["seconds"]), (case.program, case.placed)
        told = ["measured here", ""]
        if kind in beyond:
            told = [f"{by_model + beyond[kind]:.1f}", f"{100 * ((by_model + beyond[kind]) / took - 1):+.0f} %"]
        beyond.setdefault(kind, took - by_model)
        yield _line(case.machines, *_words(*kind), f"{took:.1f}", f"{by_model:.1f}", *told)
    yield ""
    yield "| machines | clients | groups | members | managers | predicted, s |"
    yield "|---|---|---|---|---|---|"
    for kind, rest in beyond.items():
        case, by_model = alone(predict, *kind, parts)
        yield _line(predict, case.clients, case.groups, *_words(*kind), f"{by_model + rest:.1f}")


def _words(program: str, placed: bool) -> tuple[str, str]:
    return {"relay": "relay", "parallel": "train in parallel"}[
        program
    ], "placed" if placed else "beside the top server"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def tell(line: str) -> None:
    """Shows the progress."""
    sys.stderr.write(f"{datetime.now():%H:%M:%S} {line}\n")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="measure, and write what was found")
    what.add_argument("--of", type=Path, metavar="FILE", help="what was measured before")
    parser.add_argument("--machines", default="2,4")
    parser.add_argument("--predict", type=int, default=1000, help="machines of which the model alone speaks")
    given = parser.parse_args()
    if given.out:
        if reason := why_not():
            parser.error(reason)
        found = measure([int(number) for number in given.machines.split(",")])
        given.out.write_text(json.dumps(found) + "\n")
    else:
        found = json.loads(given.of.read_text())
    sys.stdout.write("\n".join(tables(found, given.predict)) + "\n")


if __name__ == "__main__":
    main()
