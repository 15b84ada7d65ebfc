"""Draws a campaign: how soon each fault was noticed, and how soon work continued."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from benchmarks.chaos.play import DETECTION_S

COLOURS = {"detected": "#c1440e", "recovered": "#1f6f8b"}


def draw(runs: Path, target: Path) -> None:
    """Draws a campaign's runs.jsonl, with a row per kind of fault and victim, and a dot per fault."""
    rows: defaultdict[str, list[dict[str, float | None]]] = defaultdict(list)
    for line in runs.read_text(encoding="utf-8").splitlines():
        for hit in json.loads(line)["hits"]:
            rows[f"{hit['kind']} {hit['victim']}"].append(hit)
    names = sorted(rows, reverse=True)
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(names) + 1.4), layout="constrained")
    for place, name in enumerate(names):
        for told, shift in (("detected", 0.13), ("recovered", -0.13)):
            seconds = [second for hit in rows[name] if (second := hit[told]) is not None]
            label = told if place == 0 else None
            axes.plot(seconds, [place + shift] * len(seconds), "o", ms=4, alpha=0.6, color=COLOURS[told], label=label)
    axes.axvline(DETECTION_S, color=COLOURS["detected"], lw=0.8, ls="--")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.set_xticks([0, 0.5, 1, 2, 5, 10, 20, 50], ["0", "0.5", "1", "2", "5", "10", "20", "50"])
    axes.set_yticks(range(len(names)), [f"{name} ({len(rows[name])})" for name in names])
    axes.set_xlabel("seconds after the fault; the fault's own time is part of a recovery")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
