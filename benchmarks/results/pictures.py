"""Pictures made from summaries, as a description in TOML says. The same summaries give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.results import coalitions
from benchmarks.results.cells import Runs
from benchmarks.results.figures import figure, values
from benchmarks.results.store import Kept
from benchmarks.results.tables import Description, rows_of, runs_of
from fedgsp.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchmarks.results.bars import Panels

_DPI = 120
#: Every second mean is dashed, so that a line below another can be seen.
_STYLES = ("-", "--")
_COLOURS = ("#1d4ed8", "#d97706", "#2f9e44", "#c2255c", "#6b7280", "#7048e8", "#0c8599", "#862e9c")
_LABELS = {"accuracy": "accuracy on the clients' {part} parts, %", "loss": "loss on the clients' {part} parts"}


def picture(description: Description, kept: Kept, where: str) -> bytes | None:
    """A PNG; None if no summary of any row is kept. Raises ConfigError for a mistake in the description."""
    rows = {name: runs_of(description, row, kept) for name, row in rows_of(description, kept, where).items()}
    rows = {name: runs for name, runs in rows.items() if runs}
    kind = description.get("kind", "curves")
    if kind not in KINDS:
        raise ConfigError(f"{where}: there is no kind {kind!r}", f"use one of: {', '.join(KINDS)}")
    if not rows:
        return None
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError("pictures need matplotlib", "pip install 'matplotlib>=3.9'") from None
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever this user's settings are
        return png(KINDS[kind](description, rows, where))


def png(figure: Figure) -> bytes:
    """The bytes of a figure, without the version of matplotlib in them."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def curves(description: Description, rows: Mapping[str, Runs], where: str) -> Figure:
    """Columns of the history by round: a line for the mean of each row, and a thin one for each seed."""
    from matplotlib.figure import Figure

    panels = description.get("panels", ["accuracy", "loss"])
    drawn = Figure(figsize=(5.2 * len(panels), 4.2), layout="constrained")
    for axes, name in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        scale = figure(name, where).scale
        for number, (label, runs) in enumerate(rows.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            seeds = [_curve(run, name, scale) for run in runs.values()]
            for curve in seeds:
                axes.plot(list(curve), list(curve.values()), color=colour, linewidth=0.5, alpha=0.4)
            rounds = sorted(set.intersection(*map(set, seeds)))
            means = [float(np.mean([curve[r] for curve in seeds])) for r in rounds]
            axes.plot(rounds, means, _STYLES[number % len(_STYLES)], color=colour, linewidth=1.8, label=label)
        axes.set(xlabel="round", ylabel=_LABELS.get(name, name).format(part=description.get("part", "test")))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].legend(fontsize=8)
    drawn.suptitle(description.get("title", ""), fontsize=11)
    return drawn


def _curve(run: Mapping[str, Any], name: str, scale: float) -> dict[int, float]:
    """A column of the history by round."""
    history = run["history"]
    if name not in history:
        return {}
    pairs = zip(history["round"], history[name], strict=True)
    return {number: scale * value for number, value in pairs if value is not None}


def bars(description: Description, rows: Mapping[str, Runs], where: str) -> Figure:
    """Figures after the run: a bar for the mean of each row, and a dot for each seed."""
    from benchmarks.results.bars import figure_of

    titles = description.get("panels", {"accuracy after the last round, %": "accuracy"})
    return figure_of(panels(titles, rows, where))


def panels(titles: Mapping[str, str], rows: Mapping[str, Runs], where: str) -> Panels:
    """Title -> row -> a value for each seed, given the figure of each title."""
    return {
        title: {label: list(values(runs, name, where).values()) for label, runs in rows.items()}
        for title, name in titles.items()
    }


KINDS: dict[str, Callable[[Description, Mapping[str, Runs], str], Figure]] = {
    "curves": curves,
    "bars": bars,
    "coalitions": coalitions.figure_of,
}
