"""Measures how the time of a round follows the number of machines, and holds a model of the round against it:

    python -m benchmarks.scale --out scale.json [--machines 2,4]        # half an hour
    python -m benchmarks.scale --of scale.json [--predict 1000]         # the tables of a measurement

Machines are network namespaces of this machine, each with four nodes, behind links of 1 Gbit/s to one switch. All
connections between them use TLS. 368 clients form 16 groups, which stay the same; all groups train in each round. A
training lasts one second and uses no processor, because all machines share those of one. The model has 16 MB. Relays
and parallel groups are played, with group managers beside the top server and on the machines of nodes.

All models travel whole (`--wire raw`), because the machines share the processors that would code them.

The parts of the model (`model.py`) are measured on the smallest number of machines: a hop, in a run with one chain,
the work of the processors, and what a round takes beyond the model. The other numbers of machines are then predicted.
To measure needs Linux, root, and a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale.model import SAME_MACHINE, SAME_NODE, Layout, Parts, parallel_s, passages, relay_s
from benchmarks.scale.network import HUB, why_not
from benchmarks.scale.runs import CLIENTS, GROUPS, Case, Event, play
from top_server.placing.workers import number_of

#: Clients of the one chain that shows what a hop takes.
CHAIN = 92
#: Clients of each machine where the model alone speaks, and of each group.
CLIENTS_PER_MACHINE, GROUP_SIZE = CLIENTS // 4, CLIENTS // GROUPS


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


def by_model(case: Case, groups: Sequence[Sequence[int]], managers: Sequence[int], parts: Parts) -> float:
    """Seconds of a round by the model alone."""
    if case.program == "relay":
        return relay_s(groups, case.layout, parts)
    return parallel_s(groups, managers, case.layout, parts)


def alone(machines: int, program: str, placed: bool, parts: Parts) -> tuple[Case, float]:
    """What the model says of a number of machines that nobody has measured, in seconds; each has its processors."""
    clients = CLIENTS_PER_MACHINE * machines
    case = Case(machines, program, placed, clients, clients // GROUP_SIZE)
    order = sorted(range(clients), key=lambda client: (client * 2654435761) % 2**32)  # mixed, and always the same
    groups = [sorted(order[number :: case.groups]) for number in range(case.groups)]  # naive-gsp goes by id
    managers = [1 + number % machines if placed else HUB for number in range(case.groups)]
    own = dataclasses.replace(parts, processors=parts.processors * machines)
    return case, by_model(case, groups, managers, own)


def measure(machines: Sequence[int], programs: Sequence[str]) -> dict[str, Any]:
    """Plays all runs, the smallest number of machines first."""
    chain = Case(machines[0], "relay", False, CHAIN, 1, 2)
    of_kinds, rows = hops(play(chain).events, chain.layout), list[dict[str, Any]]()
    tell(f"hops: {of_kinds}")
    for number, program, placed in itertools.product(machines, programs, (False, True)):
        case = Case(number, program, placed)
        played = play(case)
        row = {**dataclasses.asdict(case), "seconds": played.rounds, "processor_s": played.processor_s}
        tell(json.dumps(row))
        groups, managers = groups_of(played.events), managers_of(played.events, case)
        rows.append({**row, "of_groups": groups, "managers_on": managers})
    return {"processors": os.cpu_count(), "hops": of_kinds, "rows": rows}


def work_of_models(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds of a processor for a model between machines, and within one: by least squares, from parallel rounds."""
    models = [passages(row["of_groups"], row["managers_on"], case_of(row).layout) for row in rows]
    work = [statistics.median(row["processor_s"]) for row in rows]
    (across, within), *_ = np.linalg.lstsq([[one.across, one.within] for one in models], work)
    return float(across), float(within)


def case_of(row: Mapping[str, Any]) -> Case:
    """The case of a row."""
    return Case(*(row[field.name] for field in dataclasses.fields(Case)))


def tables(found: Mapping[str, Any], predict: int) -> Iterator[str]:
    """What was measured beside the model, and the model alone, as lines of Markdown."""
    rows = found["rows"]
    fewest = [row for row in rows if row["machines"] == rows[0]["machines"]]
    across, within = work_of_models([row for row in fewest if row["program"] == "parallel"])
    one = case_of(rows[0])
    parts = Parts(
        training=one.training_s,
        hop={SAME_NODE: 0.0, SAME_MACHINE: 0.0, **found["hops"]},
        rate=one.mbit * 1e6 / 8,
        model_bytes=4 * one.parameters,
        across=across,
        within=within,
        processors=found["processors"],
    )
    rests = dict[tuple[str, bool], float]()
    yield f"Work of a processor: {across:.3f} s for a model between machines, {within:.3f} s within a machine."
    yield ""
    yield "| machines | members | managers | round, s | processors, s | by the model, s | predicted, s | error |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        case = case_of(row)
        took, work = statistics.median(row["seconds"]), statistics.median(row["processor_s"])
        seconds = by_model(case, row["of_groups"], row["managers_on"], parts)
        kind, told = (case.program, case.placed), ["measured here", ""]
        if kind in rests:
            told = [f"{seconds + rests[kind]:.1f}", f"{100 * ((seconds + rests[kind]) / took - 1):+.0f} %"]
        rests.setdefault(kind, took - seconds)
        yield _line(case.machines, *_words(*kind), f"{took:.1f}", f"{work:.1f}", f"{seconds:.1f}", *told)
    yield ""
    yield "| machines | clients | groups | members | managers | predicted, s |"
    yield "|---|---|---|---|---|---|"
    for kind, rest in rests.items():
        case, seconds = alone(predict, *kind, parts)
        yield _line(predict, case.clients, case.groups, *_words(*kind), f"{seconds + rest:.1f}")


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
    parser.add_argument("--programs", default="relay,parallel")
    parser.add_argument("--predict", type=int, default=1000, help="machines of which the model alone speaks")
    given = parser.parse_args()
    if given.out:
        if reason := why_not():
            parser.error(reason)
        found = measure([int(number) for number in given.machines.split(",")], given.programs.split(","))
        given.out.write_text(json.dumps(found) + "\n")
    else:
        found = json.loads(given.of.read_text())
    sys.stdout.write("\n".join(tables(found, given.predict)) + "\n")


if __name__ == "__main__":
    main()
