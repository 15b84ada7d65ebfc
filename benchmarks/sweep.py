"""Runs every variant of an experiment with every seed, and prints a table: sweep.py EXPERIMENT.toml --out DIR [...]

EXPERIMENT.toml has a table `run` (settings of `top-server`, as in a run's config.toml), a list `seeds`, and a table
`variants.NAME` with other settings for each variant. A seed is the seed of the run and the task's option `seed`. In
a setting, {seed} and {out} stand for the seed and DIR, so that runs with one seed can share a local run or distances.
A finished run in DIR is not run again; if its settings differ from the requested ones, the script stops. An unfinished
run is resumed if it has the same settings and a state, and otherwise run again. --task-option and --rounds apply to
every run. If a run fails, the others continue, and the exit code is 1.

The table has the mean test error over clients, in %, as the mean over seeds and its standard deviation (ddof 1). One
column has each client's best round, as HCCT's authors report, and one the last round. With --gains, it has the figures
of FedCollab's authors: accuracy after the last round, IPR and RSD, in %. If not all clients of a run were evaluated
after the last round, the run is left out of the figures of that round and named below the table. With --overall, the
table has accuracy and loss over all samples, which every scheme has. --picture draws the two main figures of the
table: the mean over seeds as a bar, each seed as a dot.

--keep writes the summary of each finished run into docs/results/data/EXPERIMENT, for tables and pictures that can be
recomputed (`python -m benchmarks.results`). The code must be committed. --weights also keeps the final models. If the
summary of a run with these models is there already, only the models are added.

--only NUMBER plays one of the runs, in the order of the seeds and, for each seed, of the variants. So the tasks of a
job array play a sweep: see docs/slurm.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from benchmarks import sweep_report
from benchmarks.results.code import code_here
from benchmarks.results.runs import finished
from benchmarks.results.store import check_name, is_kept, keep, keep_models
from benchmarks.results.summary import began
from fedgsp.errors import ConfigError, UserError
from fedgsp.options import options
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE
from fedgsp.settings.checks import flag
from fedgsp.settings.files import load, parse
from fedgsp.settings.run import RunConfig
from top_server.compared import differing
from top_server.record.directory import RunDirectory
from top_server.resume.state import is_in

T = TypeVar("T")

PROGRAM = (sys.executable, "-m", "top_server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=numbers, help="for example 0,1 (default: the seeds in the file)")
    parser.add_argument("--variants", help="for example hcct,global (default: all)")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--task-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--per-client", action="store_true", help="also print each client's last figures, as means over seeds"
    )
    figures = parser.add_mutually_exclusive_group()
    figures.add_argument(
        "--gains",
        action="store_const",
        dest="figures",
        const="gains",
        help="print accuracy and gains over training alone instead of errors",
    )
    figures.add_argument(
        "--overall",
        action="store_const",
        dest="figures",
        const="overall",
        help="print accuracy and loss over all samples instead of errors",
    )
    parser.set_defaults(figures="errors")
    parser.add_argument(
        "--keep", action="store_true", help="keep the summary of each finished run in docs/results/data"
    )
    parser.add_argument("--weights", action="store_true", help="with --keep, also keep the final models of each run")
    parser.add_argument(
        "--only",
        type=int,
        metavar="NUMBER",
        help="play only the run of this number, from 0 on, and print no table: one task of a job array",
    )
    parser.add_argument("--table", action="store_true", help="play no run; print the table of the finished runs")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the table (needs the extra `plots`)")
    arguments = parser.parse_args()
    try:
        failed = sweep(arguments)
    except UserError as error:
        sys.exit(f"sweep.py: {error}")
    if failed:
        logs = "\n".join(f"  {directory.name}: see {beside(directory, '.log')}" for directory in failed)
        sys.exit(f"{len(failed)} runs failed, and are not in the table:\n{logs}")


def sweep(arguments: argparse.Namespace) -> list[Path]:
    """Plays the runs that are not finished, prints and draws. Returns the directories of the runs that failed."""
    if arguments.picture:
        sweep_report.check(arguments.picture)
    experiment = read_experiment(arguments.experiment)
    known = experiment["variants"]
    names = arguments.variants.split(",") if arguments.variants else list(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no variant {unknown[0]!r}", f"there are: {', '.join(known)}")
    seeds = arguments.seeds or experiment["seeds"]
    runs = {name: [arguments.out / f"{name}-{seed}" for seed in seeds] for name in names}
    if arguments.keep and arguments.table:
        raise ConfigError(
            "--keep and --table do not go together", "leave out --table: finished runs are not run again"
        )
    if arguments.weights and not arguments.keep:
        raise ConfigError("--weights keeps models beside summaries", "give --keep, too")
    failed = []
    if not arguments.table:
        given = options("--task-option", arguments.task_option)
        variants = {directory: name for name, directories in runs.items() for directory in directories}
        asked = {
            runs[name][index]: settings_of(experiment, name, seed, arguments.rounds, given, arguments.out)
            for index, seed in enumerate(seeds)
            for name in names
        }
        for directory, settings in asked.items():  # checks all runs before the first is played
            check(settings, directory)
        if arguments.keep:  # refuses now, and not after the first run
            for name in (arguments.experiment.stem, *names):
                check_name(name)
            code_here()
        if arguments.only is not None:
            asked = dict([chosen(list(asked.items()), arguments.only)])
        for directory, settings in asked.items():
            if not run(settings, directory):
                failed.append(directory)
            elif arguments.keep:
                keep_once(directory, arguments.experiment.stem, variants[directory], arguments.weights)
    if arguments.only is not None:
        return failed
    sweep_report.tell(runs, arguments.figures)
    if arguments.per_client:
        sweep_report.tell_clients(runs)
    if arguments.picture:
        sweep_report.draw(runs, arguments.figures, arguments.picture)
    return failed


def keep_once(directory: Path, experiment: str, variant: str, weights: bool = False) -> None:
    """Keeps a finished run, unless it is kept already: perhaps by earlier code, with which it was played."""
    if not is_kept(directory, experiment, variant):
        keep(directory, experiment, variant, code_here(began=began(directory)), weights=weights)
    elif weights:
        keep_models(directory, experiment, variant)


def chosen(runs: list[T], number: int) -> T:
    """The run of a number; ConfigError if there are fewer."""
    if not 0 <= number < len(runs):
        raise ConfigError(f"--only is {number}, and there are {len(runs)} runs", f"give 0 to {len(runs) - 1}")
    return runs[number]


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
    """The settings of one run, as in its config.toml."""
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
    """The file beside a run with the same name and a suffix. with_suffix would replace the part after a dot."""
    return directory.parent / (directory.name + ending)


def check(settings: dict[str, Any], directory: Path) -> None:
    """Raises ConfigError for wrong settings, and if a run with other settings is finished in the directory."""
    asked = parse(RunConfig, tomli_w.dumps(settings), beside(directory, ".toml"))
    if not finished(directory):
        return
    found = load(RunConfig, directory / "config.toml")
    if name := differing(found, asked):
        there, here = getattr(found, name), getattr(asked, name)
        raise ConfigError(
            f"{directory} was run with {flag(name)} {there}, and {here} is asked for",
            "remove that directory, ask for what it has, or give another --out",
        )


def continued(settings: dict[str, Any], directory: Path) -> bool:
    """Whether the directory has a run with these settings that can be resumed."""
    if not is_in(RunDirectory(directory)):
        return False
    asked = parse(RunConfig, tomli_w.dumps(settings), beside(directory, ".toml"))
    return not differing(load(RunConfig, directory / "config.toml"), asked)


def begun(settings: dict[str, Any], directory: Path) -> list[str]:
    """Removes an unfinished run from `directory`, writes the settings beside it, and returns the run's command."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    config = beside(directory, ".toml")
    config.write_text(tomli_w.dumps(settings), encoding="utf-8")
    anywhere = [] if "listen" in settings else ["--listen", "127.0.0.1:0"]  # tasks of an array may share a machine
    return [*PROGRAM, *anywhere, "--config", str(config), "--run-dir", str(directory)]


def run(settings: dict[str, Any], directory: Path) -> bool:
    """Plays a run. Returns whether it is finished."""
    if finished(directory):
        return True
    begin = time.monotonic()
    resumed = continued(settings, directory)
    command = [*PROGRAM, "--resume", str(directory)] if resumed else begun(settings, directory)
    with beside(directory, ".log").open("a" if resumed else "w") as log, tied() as tie:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, **tie).returncode
    print(f"{directory.name}: exit {code}, {time.monotonic() - begin:.0f} s", flush=True)
    return code == 0 and finished(directory)


@contextlib.contextmanager
def tied() -> Iterator[dict[str, Any]]:
    """Arguments for `subprocess`, with which a program of FedGSP ends with this process, even if that is killed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield {"stdin": theirs, "env": {**os.environ, LIFELINE_VARIABLE: "stdin"}}


if __name__ == "__main__":
    main()
