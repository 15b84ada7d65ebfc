"""What a sweep prints and draws: figures of each variant over its seeds.

If not all clients of a run were evaluated after the last round, its figures would be over other clients than those of
other runs. Such a run is left out of the figures of that round, and named below the table, like a run without any
evaluation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results.bars import figure_of
from benchmarks.results.cells import spread
from benchmarks.results.figures import known, whole
from benchmarks.results.pictures import panels
from benchmarks.results.runs import finished
from benchmarks.results.store import Kept
from benchmarks.results.summary import Summary, results_of
from benchmarks.results.tables import table
from fedgsp.errors import ConfigError

#: Directories of a sweep by variant.
Runs = dict[str, list[Path]]

_MEAN = "mean"
#: Name of the table -> heading of a column -> its figure, as in a description of benchmarks/results/tables.py.
COLUMNS: dict[str, dict[str, Any]] = {
    "errors": {
        "seeds": "seeds",
        "best-round error": {"figure": "best-error"},
        "last-round error": {"figure": "last-error"},
        "std over clients": {"figure": "std-over-clients", "show": _MEAN},
        "min": {"figure": "least-error", "show": _MEAN},
        "max": {"figure": "most-error", "show": _MEAN},
        "MB moved": {"figure": "moved-mb", "show": _MEAN},
    },
    "gains": {
        "seeds": "seeds",
        "accuracy": {"figure": "mean-accuracy"},
        "IPR": {"figure": "ipr"},
        "RSD": {"figure": "rsd"},
        "groups": {"text": "group-sizes"},
    },
    "overall": {
        "seeds": "seeds",
        "accuracy": {"figure": "accuracy"},
        "loss": {"figure": "loss"},
        "MB moved": {"figure": "moved-mb", "show": _MEAN},
    },
}
#: Name of the table -> title of a panel -> its figure.
PANELS = {
    "errors": {
        "error in each client's best round, %": "best-error",
        "error after the last round, %": "last-error",
    },
    "gains": {
        "accuracy after the last round, %": "mean-accuracy",
        "IPR: clients better off than alone, %": "ipr",
    },
    "overall": {"accuracy after the last round, %": "accuracy", "loss after the last round": "loss"},
}


def tell(runs: Runs, figures: str) -> None:
    """Prints the table, and the runs that are left out of its figures of the last round."""
    found = results(runs)
    by_variant = {name: dict(enumerate(by_run.values())) for name, by_run in found.items()}
    description = {"experiment": "sweep", "head": "variant", "columns": COLUMNS[figures]}
    if found:
        print("\n".join(table(description, Kept(read={"sweep": by_variant}), "the table")))
    partial = {path: one for by_run in found.values() for path, one in by_run.items() if not whole(one)}
    if partial and figures != "overall":
        print("\nLeft out above, because their last round did not evaluate all clients:\n")
        for path, one in partial.items():
            told = one["clients"]
            there, all_of_them = len(known(told, "last")), len(known(told, "best"))
            of = f"round {told.get('last_evaluated')} of {one['rounds']}"
            print(f"- {path.name}: last evaluation in {of}, with {there} of {all_of_them} clients")


def tell_clients(runs: Runs) -> None:
    """Prints a table of each figure of single clients after the last round, over seeds."""
    found = {name: list(by_run.values()) for name, by_run in results(runs).items()}
    told = [one["clients"] for by_run in found.values() for one in by_run]
    numbers = sorted({number for one in told for number in one["client"]})
    names = [name for name in dict.fromkeys(key for one in told for key in one) if name == "last" or " " in name]
    for name in names:
        shown = "accuracy" if name == "last" else name.removeprefix("metric ")
        print(f"\n| {shown} of client | " + " | ".join(map(str, numbers)) + " |\n|" + "---|" * (len(numbers) + 1))
        for variant, by_run in found.items():
            cells = [
                spread([100 * value for one in by_run if (value := _of(one, name, number)) is not None])
                for number in numbers
            ]
            print(f"| {variant} | " + " | ".join(cells) + " |")


def _of(one: Summary, name: str, number: int) -> float | None:
    numbers, values = one["clients"]["client"], one["clients"].get(name)
    found: float | None = values[numbers.index(number)] if values and number in numbers else None
    return found


def results(runs: Runs) -> dict[str, dict[Path, Summary]]:
    """The results of the finished runs; variants without any are left out."""
    found: dict[str, dict[Path, Summary]] = {
        name: {path: results_of(path) for path in filter(finished, paths)} for name, paths in runs.items()
    }
    return {name: by_run for name, by_run in found.items() if by_run}


def check(out: Path) -> None:
    """Raises ConfigError if the file cannot be written. This is checked before the runs, which may take hours."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise ConfigError("--picture needs matplotlib", "pip install 'matplotlib>=3.9'") from None
    ending = out.suffix.removeprefix(".")
    if ending not in FigureCanvasAgg.get_supported_filetypes() or not out.parent.is_dir():
        raise ConfigError(
            f"--picture {out} cannot be written", "name a file such as sweep.png, in a folder that is there"
        )


def draw(runs: Runs, figures: str, out: Path) -> None:
    """Writes the picture of all finished runs; raises ConfigError if there are none."""
    rows = {name: dict(enumerate(by_run.values())) for name, by_run in results(runs).items()}
    if not rows:
        raise ConfigError(f"there is nothing to draw in --picture {out}", "no run is finished")
    try:
        figure_of(panels(PANELS[figures], rows, "the picture")).savefig(out, dpi=120)
    except OSError as error:
        raise ConfigError(f"--picture {out} cannot be written: {error}", "name a file such as sweep.png") from None
