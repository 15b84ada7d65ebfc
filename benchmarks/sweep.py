"""Runs every variant of an experiment with every seed, then prints its table: sweep.py EXPERIMENT.toml --out DIR [...]

The TOML has a table `run` (settings of `top-server`, as in a run's config.toml), a list `seeds`, and tables
`variants.NAME` with the settings that differ. A seed is both the run's and the task's option `seed`; {seed} and {out}
in a setting stand for it and for DIR, so that runs of one seed can share a local run or distances. A run that is
finished in DIR is not run again; one that was cut off is. --task-option and --rounds go to every run.

The table gives test error in %, over the clients: the mean over seeds (and +- its standard deviation, ddof 1) of the
mean over clients, once with each client's best round, as HCCT's authors report, and once after the last round. With
--gains it gives what FedCollab's authors report: accuracy after the last round, IPR and RSD, all in %.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", help="for example 0,1; those of the file if not given")
    parser.add_argument("--variants", help="for example hcct,global; all if not given")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--task-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--per-client", action="store_true", help="also each client's last figures, mean over seeds")
    parser.add_argument("--gains", action="store_true", help="accuracy and gains over training alone, not errors")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    arguments = parser.parse_args()
    experiment = tomllib.loads(arguments.experiment.read_text(encoding="utf-8"))
    seeds = [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else experiment["seeds"]
    names = arguments.variants.split(",") if arguments.variants else list(experiment["variants"])
    if unknown := [name for name in names if name not in experiment["variants"]]:
        parser.error(f"there is no variant {unknown[0]!r}; there are: {', '.join(experiment['variants'])}")
    given = dict(option.split("=", 1) for option in arguments.task_option)
    for seed in [] if arguments.table else seeds:
        for name in names:
            settings = merged(experiment["run"], experiment["variants"][name])
            settings["seed"] = seed
            settings["task_option"] = {**settings.get("task_option", {}), "seed": str(seed), **given}
            if arguments.rounds:
                settings["rounds"] = arguments.rounds
            run(filled(settings, seed=seed, out=arguments.out.resolve()), arguments.out / f"{name}-{seed}")
    runs = {name: [arguments.out / f"{name}-{seed}" for seed in seeds] for name in names}
    (gains if arguments.gains else table)(runs)
    if arguments.per_client:
        per_client(runs)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {**base, **changes}
    for key in ("task_option", "grouping_option", "training_option"):
        if key in base and key in changes:
            both[key] = {**base[key], **changes[key]}
    return both


def filled(setting: Any, **values: Any) -> Any:
    if isinstance(setting, dict):
        return {key: filled(value, **values) for key, value in setting.items()}
    return setting.format(**values) if isinstance(setting, str) else setting


def run(settings: dict[str, Any], directory: Path) -> None:
    if (directory / "summary.json").exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    config = directory.with_suffix(".toml")
    config.write_text(tomli_w.dumps(settings), encoding="utf-8")
    begin = time.monotonic()
    command = [sys.executable, "-m", "top_server", "--config", str(config), "--run-dir", str(directory)]
    with directory.with_suffix(".log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{directory.name}: exit {code}, {time.monotonic() - begin:.0f} s", flush=True)


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
        found = [directory for directory in directories if (directory / "summary.json").exists()]
        if not found:
            continue
        summaries = [json.loads((directory / "summary.json").read_text()) for directory in found]
        best, last = (
            np.array([100 * (1 - summary[key]["mean"]) for summary in summaries]) for key in ("best", "last")
        )
        spread = np.array(
            [[100 * s["best"]["std"], 100 * (1 - s["best"]["max"]), 100 * (1 - s["best"]["min"])] for s in summaries]
        )
        std, least, most = spread.mean(axis=0)
        moved = np.mean([moved_bytes(directory) for directory in found]) / 1e6
        figures = [cell(best), cell(last), f"{std:.2f}", f"{least:.2f}", f"{most:.2f}", f"{moved:,.1f}"]
        print("| " + " | ".join([name, str(len(found)), *figures]) + " |")


def gains(runs: dict[str, list[Path]]) -> None:
    print("| variant | seeds | accuracy | IPR | RSD | partition of the first seed |\n|" + "---|" * 6)
    for name, directories in runs.items():
        found = [directory for directory in directories if (directory / "summary.json").exists()]
        if not found:
            continue
        last = [json.loads((directory / "summary.json").read_text())["last"] for directory in found]
        figures = [
            cell(100 * np.array([one[key] for one in last])) if all(key in one for one in last) else "-"
            for key in ("mean", "ipr", "rsd")
        ]
        lines = (found[0] / "history.jsonl").read_text(encoding="utf-8").splitlines()
        groups = json.loads(lines[-1])["partition"]
        partition = f"{len(groups)}: " + " ".join(sorted((str(len(group)) for group in groups), key=int))
        print("| " + " | ".join([name, str(len(found)), *figures, partition]) + " |")


def per_client(runs: dict[str, list[Path]]) -> None:
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, directories in runs.items():
        for directory in directories:
            if not (directory / "summary.json").exists():
                continue
            lines = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
            last = json.loads(lines[-1])
            figures = {"accuracy": last["accuracy_per_client"], **last.get("metrics_per_client", {})}
            for figure, values in figures.items():
                found.setdefault(figure, {}).setdefault(name, []).append(values)
    for figure, by_name in found.items():
        clients = sorted({int(client) for runs in by_name.values() for values in runs for client in values})
        print(f"\n| {figure} of client | " + " | ".join(map(str, clients)) + " |\n|" + "---|" * (len(clients) + 1))
        for name, values in by_name.items():
            known = [[run[str(client)] for run in values if str(client) in run] for client in clients]
            print(f"| {name} | " + " | ".join(cell(100 * np.array(one)) if one else "-" for one in known) + " |")


def cell(values: np.ndarray) -> str:
    return f"{values.mean():.2f} +- {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values.mean():.2f}"


def moved_bytes(directory: Path) -> int:
    lines = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(row["bytes_direct"] + row["bytes_relayed"] for row in map(json.loads, lines))


if __name__ == "__main__":
    main()
