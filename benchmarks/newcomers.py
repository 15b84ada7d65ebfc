"""Lets clients join during training (HCCT, Fig. 3): newcomers.py --out DIR --data FILE.npz [--new 0,1,2] [...]

A run begins with ten clients, of CIFAR-10 or two of each of five digit domains. Every `--every` rounds, a new node
process with new clients joins, until there are twenty clients. `--new` lists the numbers of new clients per node, with
a run for each. The script prints and draws the mean test error by round, of the first ten and of all clients.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.arrivals import Coming, play
from fedgsp.errors import UserError
from top_server.record.history import read_lines

FIRST, MOST = 10, 20
DOMAINS, PER_DOMAIN = 5, 4


class Case(NamedTuple):
    """A task with twenty clients, and the order in which they join."""

    task_option: dict[str, str]
    order: list[int]
    local_epochs: int = 1


CASES = {
    "cifar10": Case({"clients": str(MOST), "train_share": "0.5"}, list(range(MOST))),
    "digit_domains": Case(
        {
            **{"domains": "mnist,usps,digits,blended,rendered", "clients_per_domain": str(PER_DOMAIN)},
            **{"samples": "140", "width": "0.25"},
        },
        # The order goes through the domains, with one client of each at a time.
        [domain * PER_DOMAIN + one for one in range(PER_DOMAIN) for domain in range(DOMAINS)],
        local_epochs=5,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=CASES, default="cifar10")
    parser.add_argument(
        "--data",
        required=True,
        help="cifar10.npz, or the folder of the binary version; for domains mnist.npz,usps.npz",
    )
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
    there_first = set(map(str, CASES[arguments.task].order[:FIRST]))
    for new in map(int, arguments.new.split(",")):
        directory = arguments.out / f"new-{new}-every-{arguments.every}-{arguments.seed}"
        play(settings_of(arguments), directory, coming(arguments, new))
        told = [row for row in read_lines(directory / "history.jsonl") if "accuracy_per_client" in row]
        everyone = [100 * (1 - np.mean(list(row["accuracy_per_client"].values()))) for row in told]
        first = [
            100 * (1 - np.mean([a for c, a in row["accuracy_per_client"].items() if c in there_first])) for row in told
        ]
        best = 100 * (
            1 - np.mean(list(json.loads((directory / "summary.json").read_text())["best"]["per_client"].values()))
        )
        print(
            f"{new} new every {arguments.every} rounds, {len(told[-1]['accuracy_per_client'])} clients at the end; "
            f"test error in %: first ten {first[-1]:.2f}, all {everyone[-1]:.2f}, best round of each {best:.2f}"
        )
        (line,) = axes.plot([row["round"] for row in told], everyone, label=f"{new} new, mean of all")
        axes.plot([row["round"] for row in told], first, "--", color=line.get_color(), label=f"{new} new, first ten")
    axes.set(xlabel="round", ylabel="mean test error, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out / "newcomers.png", dpi=120)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    case = CASES[arguments.task]
    return {
        "scheme": "hcct",
        "grouping_option": {"alpha": arguments.alpha},
        "rounds": arguments.rounds,
        "batch_size": 64,
        "local_epochs": case.local_epochs,
        "learning_rate": 0.1,
        "learning_rate_decay": 0.995,
        "evaluate_every": 5,
        "seed": arguments.seed,
        "task": arguments.task,
        "task_option": {**case.task_option, "data": arguments.data, "seed": str(arguments.seed)},
        "listen": "127.0.0.1:0",
        "min_nodes": 2,
    }


def coming(arguments: argparse.Namespace, new: int) -> Coming:
    """When nodes start: two nodes with five of the first ten clients each, then one node at a time."""
    hosted, order = FIRST, CASES[arguments.task].order

    def of(event: dict[str, Any]) -> list[list[int]]:
        nonlocal hosted
        if event["event"] == "listening":
            return [order[: FIRST // 2], order[FIRST // 2 : FIRST]]
        if (
            event["event"] != "round_finished"
            or event["round"] % arguments.every
            or event["round"] == arguments.rounds
        ):
            return []
        first, hosted = hosted, min(hosted + new, MOST)
        return [order[first:hosted]] if hosted > first else []

    return of


if __name__ == "__main__":
    main()
