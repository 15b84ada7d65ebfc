"""Lets a client join a running federation (FedCollab, section 5.4): late_client.py EXPERIMENT.toml --out DIR [...]

The run begins without the client `--late`. After round `--at`, a node with this client starts. Only its discriminators
are trained. It joins the coalition with the smallest increase of the objective, and the other coalitions stay. The
script prints the coalition, the cost and the accuracy, and draws the accuracy of the late client and of the others by
round.

The settings are those of the experiment's table `run`, with the scheme fedcollab, an evaluation every 5 rounds, and no
local run. A run that is finished in DIR is not played again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.arrivals import play
from benchmarks.sweep import beside, filled, merged, read_experiment
from fedgsp.errors import ConfigError, RunError, UserError
from fedgsp.options import options
from top_server.record.history import read_lines

#: Settings by which a sweep starts its runs. This script starts nodes itself.
_OF_A_SWEEP = ("clients", "local_nodes", "local_run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--late", type=int, default=0)
    parser.add_argument("--at", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--grouping-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--profile-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--after-arrivals", default="all", choices=("all", "joined"))
    arguments = parser.parse_args()
    directory = arguments.out / f"late-{arguments.late}-at-{arguments.at}-{arguments.seed}"
    try:
        run = read_experiment(arguments.experiment)["run"]
        early = others(run, arguments)

        def coming(event: dict[str, Any]) -> list[list[int]]:
            if event["event"] == "listening":
                return [half for half in (early[::2], early[1::2]) if half]
            late = event["event"] == "round_finished" and event["round"] == arguments.at
            return [[arguments.late]] if late else []

        play(settings_of(run, arguments), directory, coming)
        tell(arguments, directory)
    except UserError as error:
        sys.exit(f"late_client.py: {error}")


def others(run: dict[str, Any], arguments: argparse.Namespace) -> list[int]:
    """The clients that take part from the beginning."""
    clients = range(run.get("clients", 0))
    if arguments.late not in clients or len(clients) < 2:
        raise ConfigError(
            f"--late is {arguments.late}, and the experiment has {len(clients)} clients", "name one of two or more"
        )
    if not 1 <= arguments.at < arguments.rounds:
        raise ConfigError(f"--at is {arguments.at}", f"name a round before the last, which is {arguments.rounds}")
    return [client for client in clients if client != arguments.late]


def settings_of(run: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    changes = {
        "scheme": "fedcollab",
        "rounds": arguments.rounds,
        "evaluate_every": 5,
        "after_arrivals": arguments.after_arrivals,
        "seed": arguments.seed,
        "task_option": {"seed": str(arguments.seed), **options("--task-option", arguments.task_option)},
        "grouping_option": options("--grouping-option", arguments.grouping_option),
        "profile_option": options("--profile-option", arguments.profile_option),
        "listen": "127.0.0.1:0",
        "min_clients": run["clients"] - 1,
    }
    kept = {name: value for name, value in run.items() if name not in _OF_A_SWEEP}
    found: dict[str, Any] = filled(merged(kept, changes), seed=arguments.seed, out=arguments.out.resolve())
    return found


def tell(arguments: argparse.Namespace, directory: Path) -> None:
    rows = read_lines(directory / "history.jsonl")
    for event in read_lines(directory / "events.jsonl"):
        if event["event"] == "distances_found":
            print(f"round {event['round']}: {event['seconds']} s and {event['bytes'] / 1e6:,.1f} MB for distances")
    late = str(arguments.late)
    told = [row for row in rows if row.get("accuracy_per_client")]
    mine = [
        (row["round"], 100 * row["accuracy_per_client"][late]) for row in told if late in row["accuracy_per_client"]
    ]
    joined = next((row for row in rows if any(arguments.late in group for group in row["partition"])), None)
    if joined is None or not mine:
        raise RunError(
            f"client {late} never joined, or was never evaluated: its node started after round {arguments.at} of"
            f" {rows[-1]['round']}",
            f"give more --rounds, or see the last of {beside(directory, '.node-*.log')}",
        )
    group = next(group for group in joined["partition"] if arguments.late in group)
    print(f"client {late} joined in round {joined['round']}: {group}")
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    others = [100 * np.mean([a for c, a in row["accuracy_per_client"].items() if c != late]) for row in told]
    axes.plot([row["round"] for row in told], others, label="mean of the others")
    axes.plot(*zip(*mine, strict=True), marker=".", label=f"client {late}, which came late")
    axes.set(xlabel="round", ylabel="accuracy, %")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(arguments.out / "late.png", dpi=120)
    print(f"accuracy of client {late} after the last round {mine[-1][1]:.2f} %, mean of the others {others[-1]:.2f} %")


if __name__ == "__main__":
    main()
