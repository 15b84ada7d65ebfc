"""Clients join while training goes on (HCCT, Fig. 3): newcomers.py --out DIR --data FILE.npz [--new 0,1,2] [...]

Ten clients of CIFAR-10 begin; every `--every` rounds so many new ones join, each on a node process of its own, until
there are twenty. Prints the mean test error of the first ten, and of all, by round; draws both.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from arrivals import Coming, play

from fedgsp.errors import UserError
from top_server.history import read_lines

FIRST, MOST = 10, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="cifar10.npz, or the folder of the binary version")
    parser.add_argument("--new", default="0,1,2")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alpha", default="1")
    arguments = parser.parse_args()
    try:
        compare(arguments)
    except UserError as error:
        sys.exit(f"newcomers.py: {error}")


def compare(arguments: argparse.Namespace) -> None:
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for new in map(int, arguments.new.split(",")):
        directory = arguments.out / f"new-{new}-every-{arguments.every}-{arguments.seed}"
        play(settings_of(arguments), directory, coming(arguments, new))
        told = [row for row in read_lines(directory / "history.jsonl") if "accuracy_per_client" in row]
        everyone = [100 * (1 - np.mean(list(row["accuracy_per_client"].values()))) for row in told]
        first = [
            100 * (1 - np.mean([a for c, a in row["accuracy_per_client"].items() if int(c) < FIRST])) for row in told
        ]
        best = 100 * (
            1 - np.mean(list(json.loads((directory / "summary.json").read_text())["best"]["per_client"].values()))
        )
        print(
            f"{new} new every {arguments.every} rounds: {len(told[-1]['accuracy_per_client'])} clients at the end; "
            f"error of the first ten {first[-1]:.2f}, of all {everyone[-1]:.2f}, best round of each {best:.2f}"
        )
        (line,) = axes.plot([row["round"] for row in told], everyone, label=f"{new} new, all")
        axes.plot([row["round"] for row in told], first, "--", color=line.get_color(), label=f"{new} new, first ten")
    axes.set(xlabel="round", ylabel="mean test error, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out / "newcomers.png", dpi=120)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    task = {"data": str(arguments.data), "clients": str(MOST), "train_share": "0.5", "seed": str(arguments.seed)}
    return {
        "scheme": "hcct",
        "grouping_option": {"alpha": arguments.alpha},
        "rounds": arguments.rounds,
        "batch_size": 64,
        "learning_rate": 0.1,
        "learning_rate_decay": 0.995,
        "evaluate_every": 5,
        "seed": arguments.seed,
        "task": "cifar10",
        "task_option": task,
        "listen": "127.0.0.1:0",
        "min_nodes": 2,
    }


def coming(arguments: argparse.Namespace, new: int) -> Coming:
    """Half of the first ten on each of two nodes, then a node at a time."""
    hosted = FIRST

    def of(event: dict[str, Any]) -> list[range]:
        nonlocal hosted
        if event["event"] == "listening":
            return [range(FIRST // 2), range(FIRST // 2, FIRST)]
        if (
            event["event"] != "round_finished"
            or event["round"] % arguments.every
            or event["round"] == arguments.rounds
        ):
            return []
        first, hosted = hosted, min(hosted + new, MOST)
        return [range(first, hosted)] if hosted > first else []

    return of


if __name__ == "__main__":
    main()
