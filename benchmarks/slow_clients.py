"""Measures relays among sites of different speeds, with and without `--balance time`: slow_clients.py --out DIR

Every run is fedgsp on the digits with one client per node and all groups in every round. A client pauses in each
training step; the factors on the pause are drawn by the seed. The script prints a table: seconds of a round, seconds T
of its longest relay by the measured turns, the same beside the bound B for groups of these sizes, how alike the groups
were (z of eq. 4) beside ICG's own deal in the same round, and the accuracy. A finished run in DIR is not played again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.slow_sites import SlowSites
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.balancing import balanced
from top_server.grouping.refining import difference
from top_server.grouping.round_time import least_time
from top_server.record.history import read_lines
from top_server.recorded import is_finished

#: Name -> factors on the pause of some clients.
SITES = {
    "one site 20 times slower, six 2 to 5 times": "20/5/4/3/3/2/2",
    "six sites 2 to 5 times slower": "5/4/3/3/2/2",
}
#: Name -> settings beside those of all runs.
VARIANTS: dict[str, dict[str, str]] = {
    "ICG": {},
    "ICG, `--balance time`": {"balance": "time"},
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over the rounds of a run; of the first round nobody knows the times."""

    seconds: float
    relay: float
    longest: float
    unlikeness: float
    accuracy: float
    skipped: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--deals", action="store_true", help="deal groups of drawn clients, and play no run")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pause", default="0.03", help="seconds, in each step of a site of usual speed")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.deals:
        tell_deals(100)
        return
    heads = "sites", "groups", "round, s", "longest relay, s", "T / B", "z / ICG's z", "last accuracy", "skipped"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for number, (sites, slow) in enumerate(SITES.items()):
        for variant, settings in VARIANTS.items():
            found = []
            for seed in range(arguments.seeds):
                name = f"{number}-{'-'.join(settings) or 'icg'}-{seed}"
                play(arguments, arguments.out / name, slow, seed, settings)
                found.append(figures(arguments, arguments.out / name, slow, seed))
            print(f"| {sites} | {variant} | {row(found)} |", flush=True)


def play(arguments: argparse.Namespace, directory: Path, slow: str, seed: int, settings: dict[str, str]) -> None:
    events = directory / "events.jsonl"
    if events.exists() and is_finished(read_lines(events)):
        return
    options = {"clients": arguments.clients, "pause": arguments.pause, "slow": slow, "seed": seed}
    flags = {
        **{"scheme": "fedgsp", "task": "benchmarks.slow_sites:SlowSites", "sampling-rate": "1", "seed": str(seed)},
        **{"rounds": str(arguments.rounds), "clients": str(arguments.clients), "local-nodes": str(arguments.clients)},
        **{"listen": "127.0.0.1:0", "run-dir": str(directory), "keep-models": "last"},
        **settings,
    }
    command = [sys.executable, "-m", "top_server", *(f"--{name}={value}" for name, value in flags.items())]
    command += [f"--task-option={name}={value}" for name, value in options.items()]
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def figures(arguments: argparse.Namespace, directory: Path, slow: str, seed: int) -> Figures:
    task = SlowSites(arguments.clients, slow=slow, seed=seed)
    labels = [task.data(client).train.y for client in range(arguments.clients)]
    histograms = np.stack([np.bincount(y, minlength=task.num_classes) for y in labels])
    turns: defaultdict[int, dict[int, float]] = defaultdict(dict)
    teams: dict[int, list[list[int]]] = {}
    skipped = 0
    for event in read_lines(directory / "events.jsonl"):
        match event:
            case {"event": "hop_finished"}:
                turns[event["round"]][event["client"]] = event["turn"]
            case {"event": "round_started"}:
                teams[event["round"]] = event["teams"]
            case {"event": "client_skipped"}:
                skipped += 1
    rows = read_lines(directory / "history.jsonl")[1:]
    relay, longest, unlike = [], [], []
    for number in (line["round"] for line in rows):
        groups, took = teams[number], turns[number]
        times = np.array([int(1e6 * took[client]) for group in groups for client in group if client in took])
        sizes = [len(group) for group in groups]
        relay.append(max(sum(took.get(client, 0) for client in group) for group in groups))
        longest.append(1e6 * relay[-1] / least_time(times, sizes))
        dealt = icg(histograms, len(groups), number, seed)
        unlike.append(unlikeness(groups, histograms) / unlikeness(dealt, histograms))
    return Figures(
        float(np.mean([line["seconds"] for line in rows])),
        float(np.mean(relay)),
        float(np.mean(longest)),
        float(np.mean(unlike)),
        rows[-1]["accuracy"],
        skipped,
    )


def icg(histograms: Any, groups: int, number: int, seed: int) -> Any:
    """The groups that ICG deals in a round without times."""
    clients = tuple(range(len(histograms)))
    request = GroupingRequest(number, groups, seed, clients, histograms.sum(axis=1), histograms)
    return GROUPINGS["icg"](request).groups


def unlikeness(groups: Any, histograms: Any) -> int:
    return difference(np.stack([histograms[list(group)].sum(axis=0) for group in groups]))


def tell_deals(seeds: int) -> None:
    """Prints a table of deals of drawn clients: one 20 times slower per sample, a quarter up to 5 times."""
    print("| clients | groups | `refine` | T / B, ICG | T / B, balanced | z / ICG's z | within 1.05 | milliseconds |")
    print("|---|---|---|---|---|---|---|---|")
    for clients, groups in ((12, 3), (24, 4), (24, 8), (60, 10), (100, 10), (368, 50)):
        for refine in ("false", "true"):
            found = [deal(clients, groups, refine, seed) for seed in range(seeds)]
            before, after, unlike, took = np.array(found).T
            print(
                f"| {clients} | {groups} | {refine} | {before.mean():.2f}"
                f" | {after.mean():.2f}, at most {after.max():.2f}"
                f" | {unlike.mean():.2f}, at most {unlike.max():.2f} | {100 * np.mean(unlike <= 1.05):.0f} %"
                f" | {1000 * np.median(took):.1f} |",
                flush=True,
            )


def deal(clients: int, groups: int, refine: str, seed: int) -> tuple[float, float, float, float]:
    """The longest group divided by the bound B, before and after balancing; z after by before; seconds."""
    rng = np.random.default_rng([seed, clients, groups])
    samples = np.asarray(np.exp(rng.normal(4, 0.7, clients)), np.int64) + 5
    histograms = np.stack([rng.multinomial(size, rng.dirichlet(np.full(10, 0.4))) for size in samples])
    seconds = samples.astype(np.float64)
    seconds *= np.where(rng.random(clients) < 0.25, rng.uniform(2, 5, clients), 1.0)
    seconds[rng.integers(clients)] *= 20
    there, options = tuple(range(clients)), {"refine": refine}
    request = GroupingRequest(1, groups, seed, there, samples, histograms, options=options)
    dealt = GROUPINGS["icg"](request).groups
    begin = time.perf_counter()
    found = balanced(dealt, seconds, histograms, rng)
    return found.longest_before, found.longest, found.unlikeness, time.perf_counter() - begin


def row(found: list[Figures]) -> str:
    """Means over the seeds, with the smallest and the largest."""
    columns = [
        [f"{value:.2f}" for value in (np.mean(values), min(values), max(values))]
        for values in ([getattr(one, name) for one in found] for name in ("seconds", "relay", "longest", "unlikeness"))
    ]
    accuracies = [100 * one.accuracy for one in found]
    told = [f"{mean} ({least} - {most})" for mean, least, most in columns]
    told.append(f"{np.mean(accuracies):.2f} ({min(accuracies):.2f} - {max(accuracies):.2f}) %")
    return " | ".join([*told, str(sum(one.skipped for one in found))])


if __name__ == "__main__":
    main()
