"""Tables in Markdown, made from summaries as a description in TOML says; docs/results/README.md explains the TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results.cells import NONE, Runs, cell
from benchmarks.results.partitions import structures
from benchmarks.results.store import Kept
from fedgsp.errors import ConfigError

Description = Mapping[str, Any]


def table(description: Description, kept: Kept, where: str) -> list[str]:
    """The lines of a table, with what is missing named below it; ConfigError for a mistake in the description."""
    rows = rows_of(description, kept, where)
    if not has_runs(description, kept):
        return [f"No summary of experiment {_needed(description, 'experiment', where)} is kept."]
    columns: dict[str, Any] = _needed(description, "columns", where)
    lines = [line([description.get("head", ""), *columns]), "|" + "---|" * (len(columns) + 1)]
    missing = []
    for name, row in rows.items():
        runs = runs_of(description, row, kept)
        lines.append(
            line([name, *(_cell(column, description, row, runs, kept, where) for column in columns.values())])
        )
        gone = [] if "seed" in row else [str(seed) for seed in description.get("seeds", ()) if seed not in runs]
        if "seed" in row and not runs:
            missing.append(name)
        elif gone or not runs:
            missing.append(f"{name} ({'seeds ' + ', '.join(gone) if gone else 'all seeds'})")
    return lines + (["", f"Missing, because no summary is kept: {'; '.join(missing)}."] if missing else [])


def has_runs(description: Description, kept: Kept) -> bool:
    """Whether a summary of any row is kept."""
    rows = rows_of(description, kept, "a table").values()
    return any(runs_of(description, row, kept) for row in rows)


def value(description: Description, kept: Kept, where: str) -> str:
    """One number in a sentence: described like a column of a table, with an experiment and a variant."""
    row = {"variant": _needed(description, "variant", where)}
    column = {key: item for key, item in description.items() if key not in ("experiment", "variant", "seeds")}
    runs = runs_of(description, row, kept)
    if not runs:
        return f"(no summary of {description.get('experiment')}/{row['variant']} is kept)"
    return _cell(
        {"show": "mean" if "against" not in column else "difference", **column}, description, row, runs, kept, where
    )


def line(cells: list[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def rows_of(description: Description, kept: Kept, where: str) -> dict[str, dict[str, Any]]:
    """The rows by their first cell; without any in the description, a row for each variant of which runs are kept.

    With `each_seed` in the description, every row becomes a row for each seed.
    """
    given = description.get("rows")
    if given is None:
        given = {name: name for name in kept.variants(_needed(description, "experiment", where))}
    rows = {name: {"variant": row} if isinstance(row, str) else row for name, row in given.items()}
    for name, row in rows.items():
        _needed(row, "variant", f"{where}, row {name!r}")
        _needed({**description, **row}, "experiment", where)
    if description.get("each_seed"):
        return {
            f"{name}{', ' * bool(name)}{seed}": {**row, "seed": seed}
            for name, row in rows.items()
            for seed in _needed(description, "seeds", where)
        }
    return rows


def runs_of(description: Description, row: Description, kept: Kept) -> Runs:
    """The runs of a row by seed: of the seeds that it, or else the whole description, names, or else of all."""
    both = {**description, **row}
    runs = kept.runs(both["experiment"], both["variant"])
    if "seed" in row:
        return {seed: run for seed, run in runs.items() if seed == row["seed"]}
    return {seed: run for seed, run in runs.items() if seed in both["seeds"]} if "seeds" in both else runs


def _cell(column: Any, description: Description, row: Description, runs: Runs, kept: Kept, where: str) -> str:
    if column == "seeds":
        return str(len(runs))
    if isinstance(column, str):
        return str(row.get(column, ""))
    if not runs:
        return NONE
    if "text" in column:
        return structures(runs, where=where, **column)
    other = column.get("against")
    if other is None:
        return cell(column, runs, None, where)
    if other == row["variant"]:
        return ""
    return cell(column, runs, runs_of(description, {"variant": other}, kept), where)


def _needed(description: Description, key: str, where: str) -> Any:
    if key not in description:
        raise ConfigError(f"{where} has no `{key}`", "docs/results/README.md describes tables, values and pictures")
    return description[key]
