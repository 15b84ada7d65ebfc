"""Measures how a round's time and memory grow with model, clients and groups; writes a picture and its data.

    python -m benchmarks.performance.growth --out docs/results

There are 4 node processes on this machine, and clients do not really train. Three quantities grow: the model from 0.4
MB to 1 GB, with one client per node, in FedAvg and as a relay of one group; the clients from 10 to 10,000, with a
model of 10,000 parameters; the groups from 1 to 52, with 104 clients and that model. Seconds are the median of the
rounds without the first and the last. Memory is the peak of all processes together (PSS), in a separate run. Each
point is saved at once. Another call continues after the last point, and repeats failed points. The measure takes about
20 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib as mpl
import psutil

from benchmarks.performance.runs import FEDAVG, MIB, ONE_GROUP, RunFailedError, idle_task, play

NODES = 4
#: Rounds of a timed run, and of a run with long rounds.
ROUNDS, FEW_ROUNDS = 5, 3
SMALL = 10_000
GROUPED_CLIENTS = 104
TIMEOUT_S = 900.0
#: Most models that all processes hold together, to estimate the memory of a large model before its run.
MODELS_HELD = 18
PARAMETERS = (100_000, 1_000_000, 6_603_710, 25_000_000, 62_500_000, 125_000_000, 250_000_000)
CLIENTS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
GROUPS = (1, 2, 4, 8, 16, 32, 52)
PANELS = {
    "model": "model, MB",
    "clients": f"clients, model of {4 * SMALL / 1e6:g} MB",
    "groups": f"groups, {GROUPED_CLIENTS} clients, model of {4 * SMALL / 1e6:g} MB",
}
NAME = "performance-growth"


@dataclass(frozen=True)
class Point:
    """One setting and its figures. If the run failed, there are no figures, and `note` says why."""

    panel: str
    scheme: str
    x: float
    seconds: float | None = None
    peak_mib: float | None = None
    note: str = ""


def groups(number: int) -> tuple[str, ...]:
    """Settings of FedGSP with this number of groups in every round."""
    return (*ONE_GROUP[:3], str(number), *ONE_GROUP[4:])


@dataclass(frozen=True)
class Setting:
    """The run for a point."""

    point: Point
    flags: Sequence[str]
    model_bytes: int
    long: bool = False


def settings() -> Iterator[Setting]:
    """The settings of all points."""
    for parameters in PARAMETERS:
        for name, scheme in (("FedAvg", FEDAVG), ("relay", ONE_GROUP)):
            point = Point("model", name, 4 * parameters / 1e6)
            flags = [*scheme, *idle_task(NODES, parameters)]
            yield Setting(point, flags, 4 * parameters, long=parameters > 50_000_000)
    for clients in CLIENTS:
        for name, scheme in (("FedAvg", FEDAVG), ("relay", ONE_GROUP)):
            flags = [*scheme, *idle_task(clients, SMALL)]
            yield Setting(Point("clients", name, clients), flags, 4 * SMALL, long=clients > 1_000)
    for number in GROUPS:
        flags = [*groups(number), *idle_task(GROUPED_CLIENTS, SMALL)]
        yield Setting(Point("groups", "relay", number), flags, 4 * SMALL)


def found(setting: Setting) -> Point:
    """The point with its figures."""
    seconds = peak = None
    note = ""
    if MODELS_HELD * setting.model_bytes > psutil.virtual_memory().available:
        note = "not tried: too little memory is free"
    else:
        try:
            rounds = FEW_ROUNDS if setting.long else ROUNDS
            seconds = statistics.median(play(setting.flags, rounds, TIMEOUT_S).steady)
            peak = round(play(setting.flags, 2, TIMEOUT_S, watch=True).peak_pss / MIB, 1)
        except RunFailedError as error:
            note = str(error)
    return replace(setting.point, seconds=seconds, peak_mib=peak, note=note)


def draw(points: Sequence[Point], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(PANELS), figsize=(13, 7), sharey="row", layout="constrained")
    for column, (panel, label) in enumerate(PANELS.items()):
        for row, (name, value) in enumerate((("a round, s", "seconds"), ("peak of all processes, MiB", "peak_mib"))):
            plot = axes[row][column]
            for scheme, colour in (("FedAvg", "C0"), ("relay", "C1")):
                line = [(p.x, getattr(p, value)) for p in points if (p.panel, p.scheme) == (panel, scheme)]
                line = sorted((x, y) for x, y in line if y is not None)
                if line:
                    plot.plot(*zip(*line, strict=True), marker="o", markersize=4, color=colour, label=scheme)
            plot.set(xscale="log", yscale="log", xlabel=label, ylabel=name)
            plot.grid(which="major", alpha=0.3)
    axes[0][0].legend()
    figure.suptitle(f"A round without training, {NODES} node processes, {os.cpu_count()} cores")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {NAME}.png and {NAME}.json")
    flags = parser.parse_args()
    kept = flags.out / f"{NAME}.json"
    points = [Point(**point) for point in json.loads(kept.read_text())] if kept.exists() else []
    for setting in settings():
        wanted = setting.point
        same = [p for p in points if (p.panel, p.scheme, p.x) == (wanted.panel, wanted.scheme, wanted.x)]
        if any(p.peak_mib is not None for p in same):
            continue
        sys.stderr.write(f"{wanted.panel} {wanted.x:g}, {wanted.scheme} ...")
        point = found(setting)
        sys.stderr.write(f" {point.seconds} s, {point.peak_mib} MiB {point.note}\n")
        points = [p for p in points if p not in same] + [point]
        flags.out.mkdir(parents=True, exist_ok=True)
        kept.write_text("[\n" + ",\n".join(json.dumps(asdict(p)) for p in points) + "\n]\n")
    draw(points, flags.out / f"{NAME}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
