"""Runs every variant of an experiment with every seed, then prints its table: sweep.py EXPERIMENT.toml --out DIR [...]

The TOML has a table `run` (settings of `top-server`, as in a run's config.toml), a list `seeds`, and tables
`variants.NAME` with the settings that differ. A seed is both the run's and the task's option `seed`; {seed} and {out}
in a setting stand for it and for DIR, so that runs of one seed can share a local run or distances. A run that is
finished in DIR is not run again, and refused if its settings are others than those asked for; one that was cut off is
run again. --task-option and --rounds go to every run. If runs fail the others go on, and the exit code is 1.

The table gives test error in %, over the clients: the mean over seeds (and +- its standard deviation, ddof 1) of the
mean over clients, once with each client's best round, as HCCT's authors report, and once after the last round. With
--gains it gives what FedCollab's authors report: accuracy after the last round, IPR and RSD, all in %. A run whose
clients were not all evaluated after the last round counts in no figure of that round, and is named below. --picture
draws the two figures of the table that say most: the mean over seeds as a bar, each seed as a dot.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path, PurePath
from typing import Any

import tomli_w

from benchmarks import sweep_picture, sweep_tables
from fedgsp.errors import ConfigError, UserError
from fedgsp.options import options
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described
from fedgsp.settings.files import load, parse
from fedgsp.settings.run import METHOD, TASK, TRAINING, RunConfig

#: Settings of other panels that change what a run comes to.
_ALSO_SAME = ("clients", "update_norm_limit", "wire_dtype", "local_run")
#: Settings and options that are paths: the same file may lie elsewhere.
_PATHS = ("data", "distances", "local_run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=numbers, help="for example 0,1; those of the file if not given")
    parser.add_argument("--variants", help="for example hcct,global; all if not given")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--task-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--per-client", action="store_true", help="also each client's last figures, mean over seeds")
    parser.add_argument("--gains", action="store_true", help="accuracy and gains over training alone, not errors")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the table; needs the extra `plots`")
    arguments = parser.parse_args()
    try:
        failed = sweep(arguments)
    except UserError as error:
        sys.exit(f"sweep.py: {error}")
    if failed:
        logs = "\n".join(f"  {directory.name}: see {beside(directory, '.log')}" for directory in failed)
        sys.exit(f"{len(failed)} runs failed, and are not in the table:\n{logs}")


def sweep(arguments: argparse.Namespace) -> list[Path]:
    """Plays what is not there yet, prints and draws; returns the directories of the runs that failed."""
    if arguments.picture:
        sweep_picture.check(arguments.picture)
    experiment = read_experiment(arguments.experiment)
    known = experiment["variants"]
    names = arguments.variants.split(",") if arguments.variants else list(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no variant {unknown[0]!r}", f"there are: {', '.join(known)}")
    seeds = arguments.seeds or experiment["seeds"]
    runs = {name: [arguments.out / f"{name}-{seed}" for seed in seeds] for name in names}
    failed = []
    if not arguments.table:
        given = options("--task-option", arguments.task_option)
        asked = {
            runs[name][index]: settings_of(experiment, name, seed, arguments.rounds, given, arguments.out)
            for index, seed in enumerate(seeds)
            for name in names
        }
        for directory, settings in asked.items():  # all of them before the first is played
            check(settings, directory)
        failed = [directory for directory, settings in asked.items() if not run(settings, directory)]
    (sweep_tables.gains if arguments.gains else sweep_tables.table)(runs)
    if arguments.per_client:
        sweep_tables.per_client(runs)
    if arguments.picture:
        sweep_picture.draw(runs, arguments.gains, arguments.picture)
    return failed


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def read_experiment(path: Path) -> dict[str, Any]:
    try:
        experiment = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "give a TOML of benchmarks/experiments") from None
    for name in ("run", "seeds", "variants"):
        if name not in experiment:
            raise ConfigError(f"{path} has no `{name}`, so it is no experiment", "give one with run, seeds, variants")
    return experiment


def settings_of(
    experiment: dict[str, Any], name: str, seed: int, rounds: int | None, given: dict[str, str], out: Path
) -> dict[str, Any]:
    """Of one run, as in its TOML."""
    settings = merged(experiment["run"], experiment["variants"][name])
    settings["seed"] = seed
    settings["task_option"] = {**settings.get("task_option", {}), "seed": str(seed), **given}
    if rounds:
        settings["rounds"] = rounds
    found: dict[str, Any] = filled(settings, seed=seed, out=out.resolve())
    return found


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {**base, **changes}
    for key in base.keys() & changes.keys():
        if key.endswith("_option"):
            both[key] = {**base[key], **changes[key]}
    return both


def filled(setting: Any, **values: Any) -> Any:
    if isinstance(setting, dict):
        return {key: filled(value, **values) for key, value in setting.items()}
    return setting.format(**values) if isinstance(setting, str) else setting


def beside(directory: Path, ending: str) -> Path:
    """A file of the run's name; with_suffix would take what follows a dot in the name for an ending."""
    return directory.parent / (directory.name + ending)


def check(settings: dict[str, Any], directory: Path) -> None:
    """Raises ConfigError for settings that cannot be, and if a run with others is finished there."""
    asked = parse(RunConfig, tomli_w.dumps(settings), beside(directory, ".toml"))
    if not (directory / "summary.json").exists():
        return
    found = load(RunConfig, directory / "config.toml")
    for name, one in described(RunConfig).items():
        if one.metadata["panel"] not in (METHOD, TRAINING, TASK) and name not in _ALSO_SAME:
            continue
        if comparable(found, name) != comparable(asked, name):
            there, here = getattr(found, name), getattr(asked, name)
            raise ConfigError(
                f"{directory} was run with {flag(name)} {there}, and {here} is asked for",
                "remove that directory, ask for what it has, or give another --out",
            )


def comparable(config: RunConfig, name: str) -> Any:
    value = getattr(config, name)
    if isinstance(value, dict):
        return {key: file_names(text) if key in _PATHS else text for key, text in value.items()}
    return file_names(str(value)) if name in _PATHS and value is not None else value


def file_names(paths: str) -> list[str]:
    return [PurePath(path).name for path in paths.split(",")]


def begun(settings: dict[str, Any], directory: Path) -> list[str]:
    """The command that plays a run in `directory`, from which what was cut off is removed; settings lie beside it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    config = beside(directory, ".toml")
    config.write_text(tomli_w.dumps(settings), encoding="utf-8")
    return [sys.executable, "-m", "top_server", "--config", str(config), "--run-dir", str(directory)]


def run(settings: dict[str, Any], directory: Path) -> bool:
    """Whether the run is finished now."""
    if (directory / "summary.json").exists():
        return True
    begin = time.monotonic()
    command = begun(settings, directory)
    with beside(directory, ".log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{directory.name}: exit {code}, {time.monotonic() - begin:.0f} s", flush=True)
    return code == 0 and (directory / "summary.json").exists()


if __name__ == "__main__":
    main()
