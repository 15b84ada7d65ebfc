"""Several runs beside each other: runs that differ only in their seeds are one variant."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgsp.scoring import LOSS, metric_of, rated
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described
from fedgsp.settings.run import METHOD, OPTIMISER, TASK, RunConfig
from fedgsp.settings.run_files import TRAINING
from fedgsp.visible import visible
from top_server.record.scores import score_of, scored_by
from top_server.report.facts import Facts, duration, figure

#: Settings of other groups that change results.
_ALSO = ("clients", "wire_dtype", "update_norm_limit")
#: What is left out of the names of variants.
_SEED = "seed"

Curve = dict[int, float]


@dataclass(frozen=True, slots=True)
class Variant:
    """Runs with the same settings, but for their seeds."""

    name: str
    runs: Sequence[Facts]

    @property
    def scores(self) -> list[Curve]:
        """Of each run: the figure that rates the models, by round."""
        return [_curve(run, "score") for run in self.runs]

    @property
    def losses(self) -> list[Curve]:
        """Of each run: the loss by round."""
        return [_curve(run, LOSS) for run in self.runs]


@dataclass(frozen=True, slots=True)
class Band:
    """The mean of curves in the rounds that all of them have, with the least and the greatest value."""

    rounds: list[int]
    mean: list[float]
    least: list[float]
    most: list[float]


def variants(runs: Sequence[Facts]) -> list[Variant]:
    """The runs by their settings, in the order in which they were given; a name says what distinguishes a variant."""
    settings = [_settings(run) for run in runs]
    keys = sorted({key for one in settings for key in one})
    apart = [key for key in keys if len({one.get(key) for one in settings}) > 1]
    found: dict[str, list[Facts]] = {}
    for run, one in zip(runs, settings, strict=True):
        name = ", ".join(f"{key} {one[key]}" for key in apart if key in one) or "all runs"
        found.setdefault(name, []).append(run)
    return [Variant(name, group) for name, group in found.items()]


def band(curves: Sequence[Curve]) -> Band:
    """Mean, least and greatest value of curves, in the rounds that all of them have."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    values = [[curve[number] for curve in curves] for number in rounds]
    return Band(rounds, [statistics.fmean(one) for one in values], [min(v) for v in values], [max(v) for v in values])


def rows_of(found: Sequence[Variant]) -> list[tuple[str, ...]]:
    """A row for each variant: its name, seeds, rounds, figures after the last evaluation, and time of a run."""
    return [
        (
            one.name,
            ", ".join(str(run.config.seed) for run in one.runs),
            _range([len(run.rows) for run in one.runs]),
            _spread(one.runs[0].rated_by, [curve[max(curve)] for curve in one.scores if curve]),
            _spread(LOSS, [curve[max(curve)] for curve in one.losses if curve]),
            duration(statistics.fmean(sum(row.get("seconds") or 0 for row in run.rows) for run in one.runs)),
        )
        for one in found
    ]


def _settings(run: Facts) -> dict[str, str]:
    found = {}
    for name, one in described(RunConfig).items():
        value: Any = getattr(run.config, name)
        if name == _SEED or (one.metadata["panel"] not in (METHOD, TRAINING, OPTIMISER, TASK) and name not in _ALSO):
            continue
        for key, text in (value if isinstance(value, dict) else {"": value}).items():
            if key != _SEED and text not in (None, ""):
                found[f"{flag(name)} {key}".rstrip()] = visible(str(text))
    return found


def _curve(run: Facts, name: str) -> Curve:
    told = {}
    for row in run.rows:
        value = rated(scored_by(row), score_of(row)) if name == "score" else row.get(name)
        if value is not None and metric_of(scored_by(row)) == run.rated_by:
            told[int(row["round"])] = float(value)
    return told


def _spread(name: str, values: list[float]) -> str:
    if not values:
        return "not evaluated"
    mean = figure(name, statistics.fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean}, from {figure(name, min(values))} to {figure(name, max(values))}"


def _range(values: list[int]) -> str:
    return f"{values[0]}" if len({*values}) == 1 else f"{min(values)} to {max(values)}"
