"""Plays variants of a run with several seeds, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from fedgsp.errors import ConfigError
from fedgsp.task import Task
from fedgsp_runs.playing import play_again, run
from fedgsp_runs.result import Run, frame
from fedgsp_runs.texts import as_scalar
from fedgsp_runs.values import directory_of, shown
from top_server.record.directory import RunDirectory, never_began

if TYPE_CHECKING:
    import pandas as pd


#: Settings of single runs -> what a sweep has in their place.
_OF_SWEEPS = {
    "seed": "give the seeds of all variants: seeds=[0, 1]",
    "run_dir": "give the folder of all runs: out=...",
}


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep: name of the variant -> seed -> run."""

    runs: Mapping[str, Mapping[int, Run]]

    @property
    def table(self) -> pd.DataFrame:
        """One row for each run: variant, seed, score and loss after the last evaluation, seconds of all rounds.

        Raises DataError if the record of a run is damaged.
        """
        rows: list[dict[str, Any]] = []
        for name, by_seed in self.runs.items():
            for seed, one in by_seed.items():
                sums = one.sums()
                told = {"score": sums.score, "loss": sums.loss, "seconds": sums.seconds}
                rows.append({"variant": name, "seed": seed, **told})
        return frame(rows)

    def report(self, out: Path | str) -> Path:
        """Writes a report that compares the runs; returns its path."""
        from top_server.report.page import write

        write([one.directory for by_seed in self.runs.values() for one in by_seed.values()], Path(out))
        return Path(out)


def sweep(
    variants: Mapping[str, Mapping[str, Any]],
    *,
    out: Path | str,
    seeds: Iterable[SupportsIndex] = (0,),
    task: str | Callable[..., Task] = "digits",
    only: SupportsIndex | None = None,
    **settings: Any,
) -> Sweep:
    """Plays every variant with every seed, and returns the runs.

    `variants` are the settings of `run` that differ, by a name for each variant; `settings` are those of all. The
    directory of a run is `out/NAME-SEED`. A run that is finished there is not played again, and an unfinished one is
    resumed; both only if it has the same settings. With `only`, one run is played and returned: that of this number,
    counted from 0, seed by seed. So the tasks of a job array can play a sweep. Raises UserError as `run` does.
    """
    folder = directory_of(out, "out")
    _check(variants, settings)
    asked = [(seed, name) for seed in _whole(seeds) for name in variants]
    runs: dict[str, dict[int, Run]] = {name: {} for name in variants}
    if not asked:
        raise ConfigError("the sweep has no variants", "give at least one of the `variants`")
    chosen = as_scalar(only)
    if chosen is not None and not (isinstance(chosen, int) and 0 <= chosen < len(asked)):
        raise ConfigError(f"`only` is {only!r}, and there are {len(asked)} runs", f"give 0 to {len(asked) - 1}")
    for seed, name in asked if chosen is None else [asked[chosen]]:
        directory = folder / f"{name}-{seed}"
        told = {"task": task, **settings, **variants[name], "seed": seed}
        runs[name][seed] = _played(directory, told)
    return Sweep(runs)


def _check(variants: Any, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for what cannot be played as a sweep."""
    if not isinstance(variants, Mapping):
        raise ConfigError(
            f"`variants` is {shown(variants)}", 'give settings by names: {"slow": {"learning_rate": 0.01}}'
        )
    for name, own in variants.items():
        if not isinstance(name, str) or not name or {"/", "\0"} & {*name} or name.startswith("."):
            raise ConfigError(f"the variant {name!r} cannot name a directory", "give it another name")
        if not isinstance(own, Mapping):
            raise ConfigError(
                f"the variant {name!r} is {shown(own)}",
                'give its settings by names: {"learning_rate": 0.01}',
            )
    for where, told in (("this sweep", settings), *((f"the variant {name!r}", own) for name, own in variants.items())):
        for setting, remedy in _OF_SWEEPS.items():
            if setting in told:
                raise ConfigError(f"{where} has {setting}={told[setting]!r}, which a sweep sets itself", remedy)


def _whole(seeds: Any) -> list[int]:
    """The seeds as numbers of Python; raises ConfigError."""
    found = [as_scalar(one) for one in seeds] if isinstance(seeds, Iterable) else []
    if not found or not all(type(one) is int for one in found):
        raise ConfigError(f"`seeds` is {seeds!r}", "give a list of whole numbers: [0, 1, 2]")
    return found


def _played(directory: Path, told: dict[str, Any]) -> Run:
    files = RunDirectory(directory)
    begun = files.events.is_file() and not never_began(files)  # a run replaces one that never began
    return play_again(directory, told) if begun else run(**told, run_dir=directory)
