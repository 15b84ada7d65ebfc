"""Draws accuracy and loss over the rounds of one or more runs: plot_history.py OUT.png LABEL=RUN_DIR ...

The script needs the `plots` extra. A horizontal line marks the accuracy given by --target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from top_server.record.history import read_lines


def read(run_dir: Path) -> list[dict[str, float]]:
    return [row for row in read_lines(run_dir / "history.jsonl") if row["accuracy"] is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN_DIR")
    parser.add_argument("--target", type=float, help="accuracy to mark by a line, for example 0.8")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for item in arguments.runs:
        label, _, run_dir = item.partition("=")
        rows = read(Path(run_dir))
        rounds = [row["round"] for row in rows]
        left.plot(rounds, [100 * row["accuracy"] for row in rows], marker=".", label=label)
        right.plot(rounds, [row["loss"] for row in rows], marker=".", label=label)
        last = rows[-1]
        print(f"{label}: round {last['round']}: accuracy {last['accuracy']:.4f}, loss {last['loss']:.4f}")
    if arguments.target is not None:
        left.axhline(100 * arguments.target, color="grey", linestyle="--", linewidth=1)
    left.set(xlabel="round", ylabel="accuracy on the clients' test parts, %")
    right.set(xlabel="round", ylabel="loss")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(arguments.title)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
