"""Compares class probability distances of clients, random groups and ICG groups of FEMNIST (FedGSP, Fig. 3a).

`FEDGSP_DATA=DIR python -m benchmarks.cpd_figure OUT.png` reads DIR/femnist.npz, prints the medians of the distances
and draws their distributions.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.femnist_writers import WRITERS, class_counts
from fedgsp.seeds import stream
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.cpd import cpd_pairs

mpl.use("Agg")

import matplotlib.pyplot as plt
from numpy.typing import NDArray

MIN_SAMPLES = 100
#: The growth log with alpha 2 and beta 10 has 10 groups in round 1, 50 in rounds 8 to 12, 130 from round 404 on.
GROUP_COUNTS = (10, 50, 100, 110, 120, 130)
#: Those of which distributions are drawn.
DRAWN = (10, 50)
STYLES = {
    "clients (FedAvg)": ("#6b7280", ":"),
    "random groups": ("#d97706", "--"),
    "ICG groups": ("#1d4ed8", "-"),
}


def writer_histograms(data: Path, seed: int) -> NDArray[np.int64]:
    """Class counts, shape (368, 62), of the training parts of writers with at least 100 samples in both parts."""
    histograms, tested = class_counts(data / "femnist.npz")
    usable = np.flatnonzero(histograms.sum(axis=1) + tested >= MIN_SAMPLES)
    drawn: NDArray[np.int64] = usable[np.sort(stream(seed, "femnist-writers").permutation(len(usable))[:WRITERS])]
    return histograms[drawn]


def group_distances(name: str, histograms: NDArray[np.int64], groups: int, seed: int) -> NDArray[np.float64]:
    clients = tuple(range(len(histograms)))
    plan = GROUPINGS[name](GroupingRequest(1, groups, seed, clients, histograms.sum(axis=1), histograms))
    return cpd_pairs(np.stack([histograms[list(group)].sum(axis=0) for group in plan.groups]))


def distances(data: Path, groups: int, seeds: range) -> dict[str, NDArray[np.float64]]:
    pooled: dict[str, list[NDArray[np.float64]]] = {label: [] for label in STYLES}
    for seed in seeds:
        histograms = writer_histograms(data, seed)
        pooled["clients (FedAvg)"].append(cpd_pairs(histograms))
        pooled["random groups"].append(group_distances("random", histograms, groups, seed))
        pooled["ICG groups"].append(group_distances("icg", histograms, groups, seed))
    return {label: np.concatenate(parts) for label, parts in pooled.items()}


def draw(results: dict[int, dict[str, NDArray[np.float64]]], seeds: int, out: Path) -> None:
    figure, panels = plt.subplots(1, len(results), figsize=(10, 5), sharex=True, sharey=True, layout="constrained")
    for panel, (groups, by_label) in zip(panels, results.items(), strict=True):
        for label, values in by_label.items():
            colour, line = STYLES[label]
            median = np.median(values)
            shares = np.arange(1, len(values) + 1) / len(values)
            panel.plot(np.sort(values), shares, line, color=colour, label=f"{label}: median {median:.5f}")
            panel.plot(median, 0.5, "o", color=colour, markersize=5)
        panel.set_xscale("log")
        panel.set_xlabel("class probability distance of a pair")
        panel.set_title(f"M = {groups} groups of {WRITERS // groups}", fontsize=11)
        panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9, frameon=False)
    panels[0].set_ylabel("share of pairs at or below")
    panels[0].set_ylim(0, 1.02)
    figure.suptitle(f"FEMNIST, {WRITERS} writers, {seeds} seeds", fontsize=11)
    figure.savefig(out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="PNG file to write")
    parser.add_argument("--seeds", type=int, default=5, help="number of random draws of writers and groups")
    arguments = parser.parse_args()
    if "FEDGSP_DATA" not in os.environ:
        parser.error("set FEDGSP_DATA to the directory of femnist.npz")
    data = Path(os.environ["FEDGSP_DATA"])
    results = {groups: distances(data, groups, range(arguments.seeds)) for groups in GROUP_COUNTS}
    print(f"{'M':>4}  {'pairs of':<16} {'median CPD':>11} {'below clients':>14} {'below random':>13}")
    for groups, by_label in results.items():
        medians = {label: float(np.median(values)) for label, values in by_label.items()}
        clients, random, icg = medians.values()
        print(f"{groups:>4}  {'clients (FedAvg)':<16} {clients:>11.5f}")
        print(f"{groups:>4}  {'random groups':<16} {random:>11.5f} {1 - random / clients:>14.1%}")
        print(f"{groups:>4}  {'ICG groups':<16} {icg:>11.5f} {1 - icg / clients:>14.1%} {1 - icg / random:>13.1%}")
    draw({groups: results[groups] for groups in DRAWN}, arguments.seeds, arguments.out)


if __name__ == "__main__":
    main()
