"""A client comes to a running federation (FedCollab, section 5.4): late_client.py EXPERIMENT.toml --out DIR [...]

All clients but one begin; when round `--at` is over a node with the last one starts. Only its own discriminators are
trained, it joins the coalition that lowers the objective, and the others' coalitions stay. Prints what it joined, what
that cost, and its accuracy; draws the accuracy of the late client and of the others by round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np


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
    parser.add_argument("--after-arrivals", default="all", choices=("all", "joined"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    directory = arguments.out / f"late-{arguments.late}-{arguments.seed}"
    if not (directory / "summary.json").exists():
        play(arguments, tomllib.loads(arguments.experiment.read_text(encoding="utf-8"))["run"], directory)
    tell(arguments, directory)


def play(arguments: argparse.Namespace, run: dict[str, Any], directory: Path) -> None:
    clients = int(run["clients"])
    task = ["--task", run["task"]]
    for name, value in {**run["task_option"], "seed": arguments.seed}.items():
        task += ["--task-option", f"{name}={value}"]
    task += [text for option in arguments.task_option for text in ("--task-option", option)]
    settings = ["--scheme", "fedcollab", "--rounds", str(arguments.rounds), "--evaluate-every", "5"]
    settings += ["--batch-size", str(run["batch_size"]), "--learning-rate", str(run["learning_rate"])]
    settings += ["--seed", str(arguments.seed), "--listen", "127.0.0.1:0", "--json"]
    settings += ["--after-arrivals", arguments.after_arrivals]
    settings += ["--min-clients", str(clients - 1), "--run-dir", str(directory)]
    settings += [text for option in arguments.grouping_option for text in ("--grouping-option", option)]
    command = [sys.executable, "-m", "top_server", *settings, *task]
    early = [client for client in range(clients) if client != arguments.late]
    nodes: list[subprocess.Popen[bytes]] = []
    address = ""

    def start(hosted: list[int]) -> None:
        node = [sys.executable, "-m", "fedgsp_node", "start", "--top-server", address, *task]
        node += ["--clients", ",".join(map(str, hosted)), "--peer-listen", "127.0.0.1:0"]
        nodes.append(subprocess.Popen(node, stderr=subprocess.DEVNULL))

    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top_server:
            assert top_server.stdout is not None
            for line in top_server.stdout:
                event = json.loads(line) if line.startswith("{") else {"event": ""}
                if event["event"] == "listening":
                    address = event["address"]
                    start(early[::2])
                    start(early[1::2])
                elif event["event"] == "round_finished" and event["round"] == arguments.at:
                    start([arguments.late])
        if top_server.returncode:
            sys.exit(f"the top server ended with code {top_server.returncode}")
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()


def tell(arguments: argparse.Namespace, directory: Path) -> None:
    rows = [json.loads(line) for line in (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    for event in events:
        if event["event"] == "distances_found":
            print(f"round {event['round']}: {event['seconds']} s and {event['bytes'] / 1e6:,.1f} MB for distances")
    late = str(arguments.late)
    joined = next(row for row in rows if any(arguments.late in group for group in row["partition"]))
    group = next(group for group in joined["partition"] if arguments.late in group)
    print(f"client {late} joined in round {joined['round']}: {group}")
    told = [row for row in rows if row.get("accuracy_per_client")]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    mine = [
        (row["round"], 100 * row["accuracy_per_client"][late]) for row in told if late in row["accuracy_per_client"]
    ]
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
