"""The tables of a sweep: figures of each variant over its seeds, from the summaries of the runs.

If not all clients of a run were evaluated after the last round, its figures would be over other clients than those of
other runs. Such a run is left out of the figures of that round, and named below the table, like a run without any
evaluation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from top_server.record.history import read_lines


def summaries(directories: list[Path]) -> dict[Path, dict[str, Any]]:
    """The summaries of the finished runs."""
    files = {directory: directory / "summary.json" for directory in directories}
    return {
        directory: json.loads(file.read_text(encoding="utf-8")) for directory, file in files.items() if file.exists()
    }


def whole(summary: dict[str, Any]) -> bool:
    """Whether all clients that were evaluated in any round were evaluated after the last round."""
    last, best = summary["last"], summary["best"]
    return bool(last["round"] == summary["rounds"] and last["per_client"].keys() == best["per_client"].keys())


def tell_partial(runs: dict[str, list[Path]]) -> None:
    found = {path: told for paths in runs.values() for path, told in summaries(paths).items() if not whole(told)}
    if found:
        print("\nLeft out above, because their last round did not evaluate all clients:\n")
    for directory, told in found.items():
        there, all_of_them = (len(told[part]["per_client"]) for part in ("last", "best"))
        of = f"round {told['last']['round']} of {told['rounds']}"
        print(f"- {directory.name}: last evaluation in {of}, with {there} of {all_of_them} clients")


def table(runs: dict[str, list[Path]]) -> None:
    columns = [
        "variant",
        "seeds",
        "best-round error",
        "last-round error",
        "std over clients",
        "min",
        "max",
        "MB moved",
    ]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for name, directories in runs.items():
        found = summaries(directories)
        if not found:
            continue
        told = found.values()
        best = np.array([100 * (1 - summary["best"]["mean"]) for summary in told])
        last = np.array([100 * (1 - summary["last"]["mean"]) for summary in told if whole(summary)])
        spread = np.array(
            [[100 * s["best"]["std"], 100 * (1 - s["best"]["max"]), 100 * (1 - s["best"]["min"])] for s in told]
        )
        std, least, most = spread.mean(axis=0)
        moved = np.mean([moved_bytes(directory) for directory in found]) / 1e6
        figures = [cell(best), cell(last), f"{std:.2f}", f"{least:.2f}", f"{most:.2f}", f"{moved:,.1f}"]
        print("| " + " | ".join([name, str(len(found)), *figures]) + " |")
    tell_partial(runs)


def gains(runs: dict[str, list[Path]]) -> None:
    print("| variant | seeds | accuracy | IPR | RSD | partition of the first seed |\n|" + "---|" * 6)
    for name, directories in runs.items():
        found = summaries(directories)
        if not found:
            continue
        last = [summary["last"] for summary in found.values() if whole(summary)]
        figures = [
            cell(100 * np.array([one[key] for one in last])) if all(key in one for one in last) else "-"
            for key in ("mean", "ipr", "rsd")
        ]
        groups = rows(next(iter(found)))[-1]["partition"]
        partition = f"{len(groups)}: " + " ".join(sorted((str(len(group)) for group in groups), key=int))
        print("| " + " | ".join([name, str(len(found)), *figures, partition]) + " |")
    tell_partial(runs)


def per_client(runs: dict[str, list[Path]]) -> None:
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, directories in runs.items():
        for directory in summaries(directories):
            last = rows(directory)[-1]
            figures = {"accuracy": last["accuracy_per_client"], **last.get("metrics_per_client", {})}
            for figure, values in figures.items():
                found.setdefault(figure, {}).setdefault(name, []).append(values)
    for figure, by_name in found.items():
        clients = sorted({int(client) for runs in by_name.values() for values in runs for client in values})
        print(f"\n| {figure} of client | " + " | ".join(map(str, clients)) + " |\n|" + "---|" * (len(clients) + 1))
        for name, values in by_name.items():
            known = [[run[str(client)] for run in values if str(client) in run] for client in clients]
            print(f"| {name} | " + " | ".join(cell(100 * np.array(one)) for one in known) + " |")


def cell(values: np.ndarray) -> str:
    if not len(values):
        return "-"
    return f"{values.mean():.2f} +- {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values.mean():.2f}"


def moved_bytes(directory: Path) -> int:
    return sum(row["bytes_direct"] + row["bytes_relayed"] for row in rows(directory))


def rows(directory: Path) -> list[dict[str, Any]]:
    return read_lines(directory / "history.jsonl")
