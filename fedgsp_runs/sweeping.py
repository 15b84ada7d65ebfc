"""Plays variants of a run with several seeds, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsp.errors import ConfigError
from fedgsp.task import Task
from fedgsp_runs.playing import play_again, run
from fedgsp_runs.result import Run, frame
from top_server.record.directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep: name of the variant -> seed -> run."""

    runs: Mapping[str, Mapping[int, Run]]

    @property
    def table(self) -> pd.DataFrame:
        """One row for each run: variant, seed, score and loss after the last evaluation, seconds of all rounds."""
        rows: list[dict[str, Any]] = []
        for name, by_seed in self.runs.items():
            for seed, one in by_seed.items():
                told = one.rows
                loss = next((row["loss"] for row in reversed(told) if row.get("loss") is not None), None)
                seconds = sum(row.get("seconds") or 0 for row in told)
                rows.append({"variant": name, "seed": seed, "score": one.score, "loss": loss, "seconds": seconds})
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
    seeds: Sequence[int] = (0,),
    task: str | Callable[..., Task] = "digits",
    only: int | None = None,
    **settings: Any,
) -> Sweep:
    """Plays every variant with every seed, and returns the runs.

    `variants` are the settings of `run` that differ, by a name for each variant; `settings` are those of all. The
    directory of a run is `out/NAME-SEED`. A run that is finished there is not played again, and an unfinished one is
    resumed; both only if it has the same settings. With `only`, one run is played and returned: that of this number,
    counted from 0, seed by seed. So the tasks of a job array can play a sweep. Raises UserError as `run` does.
    """
    runs: dict[str, dict[int, Run]] = {name: {} for name in variants}
    asked = [(seed, name) for seed in seeds for name in variants]
    for name in variants:
        if not name or "/" in name or name.startswith("."):
            raise ConfigError(f"the variant {name!r} cannot name a directory", "give it another name")
    if only is not None and not 0 <= only < len(asked):
        raise ConfigError(f"`only` is {only}, and there are {len(asked)} runs", f"give 0 to {len(asked) - 1}")
    for seed, name in asked if only is None else [asked[only]]:
        directory = Path(out) / f"{name}-{seed}"
        told = {"task": task, **settings, **variants[name], "seed": seed}
        runs[name][seed] = _played(directory, told)
    return Sweep(runs)


def _played(directory: Path, told: dict[str, Any]) -> Run:
    begun = RunDirectory(directory).events.is_file()
    return play_again(directory, told) if begun else run(**told, run_dir=directory)
