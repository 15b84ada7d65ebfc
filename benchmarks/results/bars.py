"""Draws figures of several runs: panels with a bar per row and a dot per seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Title of a panel -> label of a row -> one value per seed; no values if no run has them.
Panels = dict[str, dict[str, list[float]]]


def figure_of(panels: Panels) -> Figure:
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
