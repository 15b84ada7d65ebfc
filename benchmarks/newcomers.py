"""Clients join while training goes on (HCCT, Fig. 3): newcomers.py --out DIR --data FILE.npz [--new 0,1,2] [...]

Ten clients of CIFAR-10 begin; every `--every` rounds so many new ones join, each on a node process of its own, until
there are twenty. Prints the mean test error of the first ten, and of all, by round; draws both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

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
    arguments.out.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for new in map(int, arguments.new.split(",")):
        directory = arguments.out / f"new-{new}-{arguments.seed}"
        if not (directory / "summary.json").exists():
            play(arguments, new, directory)
        rows = [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]
        told = [row for row in rows if "accuracy_per_client" in row]
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


def play(arguments: argparse.Namespace, new: int, directory: Path) -> None:
    options = ["--task-option", f"data={arguments.data}", "--task-option", f"clients={MOST}"]
    options += ["--task-option", "train_share=0.5", "--task-option", f"seed={arguments.seed}", "--task", "cifar10"]
    settings = ["--scheme", "hcct", "--grouping-option", f"alpha={arguments.alpha}", "--rounds", str(arguments.rounds)]
    settings += ["--batch-size", "64", "--learning-rate", "0.1", "--learning-rate-decay", "0.995", "--min-nodes", "2"]
    settings += ["--evaluate-every", "5", "--seed", str(arguments.seed), "--listen", "127.0.0.1:0", "--json"]
    command = [sys.executable, "-m", "top_server", *settings, *options, "--run-dir", str(directory)]
    nodes: list[subprocess.Popen[bytes]] = []
    address, hosted = "", FIRST

    def start(first: int, last: int) -> None:
        node = [sys.executable, "-m", "fedgsp_node", "start", "--top-server", address, *options]
        node += ["--clients", f"{first}-{last}", "--peer-listen", "127.0.0.1:0"]
        nodes.append(subprocess.Popen(node, stderr=subprocess.DEVNULL))

    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top_server:
            assert top_server.stdout is not None
            for line in top_server.stdout:
                event = json.loads(line)
                if event["event"] == "listening":
                    address = event["address"]
                    start(0, FIRST // 2 - 1)
                    start(FIRST // 2, FIRST - 1)
                if event["event"] == "round_finished" and event["round"] % arguments.every == 0:
                    coming = min(new, MOST - hosted)
                    if coming and event["round"] < arguments.rounds:
                        start(hosted, hosted + coming - 1)
                        hosted += coming
    finally:
        for process in nodes:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
