"""Draws a sweep: the two main figures of its table, with a bar per variant and a dot per seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.sweep_tables import summaries, whole
from fedgsp.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: With --gains or without: title of a panel -> part of the summary, name of its figure, whether to draw 1 minus it.
_GAINS = {
    "accuracy after the last round, %": ("last", "mean", False),
    "IPR: clients better off than alone, %": ("last", "ipr", False),
}
_ERRORS = {
    "error in each client's best round, %": ("best", "mean", True),
    "error after the last round, %": ("last", "mean", True),
}

#: The values of a panel: variant -> one value per seed; no values if no run has them.
Marks = dict[str, list[float]]


def check(out: Path) -> None:
    """Raises ConfigError if the file cannot be written. This is checked before the runs, which may take hours."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise ConfigError("--picture needs matplotlib", "install the extra: pip install 'fedgsp[plots]'") from None
    ending = out.suffix.removeprefix(".")
    if ending not in FigureCanvasAgg.get_supported_filetypes() or not out.parent.is_dir():
        raise ConfigError(
            f"--picture {out} cannot be written", "name a file such as sweep.png, in a folder that is there"
        )


def draw(runs: dict[str, list[Path]], gains: bool, out: Path) -> None:
    """Writes the picture of all finished runs; raises ConfigError if there are none."""
    panels = marks(runs, gains)
    if not any(values for panel in panels.values() for values in panel.values()):
        raise ConfigError(f"there is nothing to draw in --picture {out}", "no run is finished")
    try:
        figure_of(panels).savefig(out, dpi=120)
    except OSError as error:
        raise ConfigError(f"--picture {out} cannot be written: {error}", "name a file such as sweep.png") from None


def marks(runs: dict[str, list[Path]], gains: bool) -> dict[str, Marks]:
    """The values of each panel. As in the table, variants without a finished run are left out, and so is the last
    round of a run in which not all clients were evaluated.
    """
    found = {name: told for name, directories in runs.items() if (told := summaries(directories).values())}
    return {
        title: {
            name: [
                100 * (1 - s[part][figure] if error else s[part][figure])
                for s in told
                if figure in s[part] and (part != "last" or whole(s))
            ]
            for name, told in found.items()
        }
        for title, (part, figure, error) in (_GAINS if gains else _ERRORS).items()
    }


def figure_of(panels: dict[str, Marks]) -> Figure:
    """The figure, with panels side by side. Variants are listed from the top; bars begin at 0 and show their mean."""
    from matplotlib.figure import Figure

    names = list(next(iter(panels.values())))
    figure = Figure(figsize=(5.5 * len(panels), 1.2 + 0.28 * len(names)), layout="constrained")
    for axes, (title, values) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        means = [float(np.mean(values[name])) if values[name] else np.nan for name in names]
        axes.barh(names, means, color="#a5c8e4", height=0.7)
        rows = [row for row, name in enumerate(names) for _ in values[name]]
        axes.scatter([value for name in names for value in values[name]], rows, s=12, color="#1b4965", zorder=3)
        for row, mean in enumerate(means):
            # At the edge of the panel, where there are no dots.
            shown = "-" if np.isnan(mean) else f"{mean:.1f}"
            axes.annotate(shown, (1.01, row), xycoords=axes.get_yaxis_transform(), va="center", fontsize=8)
        axes.set_xlim(left=0)
        axes.margins(y=0.01)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()  # inverts all panels, because they share the axis
    return figure
