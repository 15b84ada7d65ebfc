"""Draws a run: score, loss and metrics by round, who trained with whom, distances between data, gains over alone.

Needs the `plots` extra.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsp.errors import ConfigError, remedy_of
from fedgsp.scoring import ACCURACY, larger_is_better, metric_of
from fedgsp.visible import visible
from fedgsp.words import share, with_name
from top_server.pictures.distances import by_coalition, draw_distances, literal, name_clients, short_names
from top_server.pictures.files import write_out
from top_server.pictures.groups import Groups
from top_server.pictures.kept import Rows
from top_server.pictures.shown import Curves, Shown, rated_by, shown
from top_server.record.scores import score_of, scored_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import HashableList

#: Palettes of 20 colours each; further groups use the same colours again.
_PALETTES = ("tab20", "tab20b", "tab20c")
_COLOURS = 20 * len(_PALETTES)
#: Bars of gains, at most: each takes 10 kB. More gains are an area.
_MOST_BARS = 1_000
#: The bars of gains have lines between groups, if there are no more groups than this.
_MOST_LINES = 20
#: A wide matrix gets a row of the picture for itself; its height grows with its clients.
_ROW_INCHES, _INCHES_PER_CLIENT, _TALLEST_INCHES = 4.2, 0.06, 9.0
#: Letters of the title above a panel, and lines of the title.
_LETTERS, _MOST_TITLE = 40, 3
_BETTER, _NOT_BETTER = "#2f9e44", "#e8590c"


def draw(run_dir: Path, out: Path) -> None:
    """Writes a picture of the run in `run_dir` to the file `out`: score, loss, metrics, and who trained with whom.

    Raises UserError if the run has no finished round, or if matplotlib is not installed.
    """
    run = shown(run_dir)
    plt = pyplot()
    layout = panels(
        run.groups, run.distances is not None, bool(run.gains), loss=not run.rated_by_loss, metrics=bool(run.metrics)
    )
    heights = [_height(row, run.groups) for row in layout]
    figure, axes = plt.subplot_mosaic(
        layout, figsize=(5 * len(layout[0]), sum(heights)), layout="constrained", height_ratios=heights
    )
    for name, one in axes.items():
        PANELS[name](one, run)
    title = textwrap.wrap(
        visible(run_dir.resolve().name), _LETTERS * len(layout[0]), max_lines=_MOST_TITLE, placeholder="..."
    )
    figure.suptitle("\n".join(map(literal, title)))
    try:
        drawn = BytesIO()
        figure.savefig(drawn, dpi=120, format=out.suffix.removeprefix(".") or "png")
        write_out(out, drawn.getvalue(), (run_dir,))
    except ValueError as error:  # no format has this name
        raise ConfigError(f"--out {out} cannot be written: {error}", "give a file name such as run.png") from None
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}", remedy_of(error)) from None
    finally:
        plt.close(figure)


def pyplot() -> Any:
    """The module that draws, without a screen; raises ConfigError if matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib import pyplot as plt
    except ImportError:
        raise ConfigError("drawing needs matplotlib", "pip install 'matplotlib>=3.9'") from None
    mpl.use("Agg")
    # Names may have letters of scripts that the font lacks; they are drawn as boxes.
    warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
    return plt


def panels(
    groups: Groups | None, distances: bool, gains: bool, loss: bool = True, metrics: bool = False
) -> list[HashableList[str]]:
    """The panels, row by row: many groups have a row for themselves, gains the rest of a second row."""
    there = {"score": True, "loss": loss, "metrics": metrics, "groups": groups is not None and not groups.wide}
    upper: HashableList[str] = [name for name, shown in there.items() if shown]
    matrix: HashableList[str] = ["distances"] if distances else []
    rows = [upper, matrix + ["gains"] * (len(upper) - len(matrix))] if gains else [upper + matrix]
    return [*rows, ["groups"] * len(rows[0])] if groups is not None and groups.wide else rows


def _height(panels: HashableList[str], groups: Groups | None) -> float:
    if groups is None or set(panels) != {"groups"}:
        return _ROW_INCHES
    return min(max(_ROW_INCHES, len(groups.clients) * _INCHES_PER_CLIENT), _TALLEST_INCHES)


def draw_score(axes: Axes, rows: Rows, curves: Curves) -> None:
    """Draws the figure that rates the models, by round: over all samples, and of each client if the rows have it."""
    score = rated_by(rows)
    factor = (100 if score == ACCURACY else 1) * (1 if larger_is_better(score) else -1)
    each = "each client" if len(curves.of) == curves.clients else share(len(curves.of), curves.clients, "client")
    for number, curve in enumerate(curves.of.values()):
        label = "_" if number else each
        values = [factor * value for value in curve.values()]
        axes.plot(list(curve), values, color="0.8", linewidth=0.8, zorder=1, label=label)
    told = {row["round"]: factor * value for row in rows if (value := score_of(row)) is not None}
    axes.plot(list(told), list(told.values()), marker=".", label="over all clients")
    axes.legend()
    _by_round(axes, f"{literal(metric_of(score))} on the clients' test parts{', %' if score == ACCURACY else ''}")
    compared = [row for row in rows if row.get("ipr") is not None and row.get("rsd") is not None]
    if compared:
        last = compared[-1]
        rsd = f"{100 * last['rsd']:.1f} %" if score == ACCURACY else f"{last['rsd']:.4g}"
        axes.set_title(f"round {last['round']}: IPR {100 * last['ipr']:.1f} %, RSD {rsd}")


def _draw_metrics(axes: Axes, metrics: dict[str, dict[int, float]]) -> None:
    lines = [axes.plot(list(curve), list(curve.values()), marker=".")[0] for curve in metrics.values()]
    legend = axes.legend(lines, ["metric"] * len(lines))
    for text, name in zip(legend.get_texts(), metrics, strict=True):
        text.set_text(literal(name))  # only now: a legend leaves out labels that begin with "_"
    _by_round(axes, "metrics of the task")


def _paint_groups(axes: Axes, groups: Groups, called: Mapping[int, str]) -> None:
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    short = short_names(called)
    names = dict(enumerate(with_name(client, short) for client in groups.clients))
    axes.imshow(
        groups.image % _COLOURS,
        # The palettes have light colours beside dark ones: the dark colours come first, as they differ more.
        cmap=ListedColormap(
            [mpl.colormaps[name](i) for name in _PALETTES for i in (*range(0, 20, 2), *range(1, 20, 2))]
        ),
        aspect="auto",
        extent=(groups.rounds[0] - 0.5, groups.rounds[-1] + 0.5, len(groups.clients) - 0.5, -0.5),
        interpolation="nearest",
        vmin=0,
        vmax=_COLOURS - 1,
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda row, _: names.get(round(row), ""))
    axes.set_title(groups.title, fontsize="small", loc="right")  # wider than its axes: there is room on the left
    _by_round(axes, "client")


def _by_round(axes: Axes, shown: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="round", ylabel=shown)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_gains(
    axes: Axes, gains: dict[int, float], partition: list[list[int]], score: str, called: Mapping[int, str]
) -> None:
    ordered, sizes = by_coalition(list(gains), partition)
    heights = [(100 if score == ACCURACY else 1) * gains[client] for client in ordered]
    if len(heights) <= _MOST_BARS:
        axes.bar(range(len(ordered)), heights, color=[_BETTER if height > 0 else _NOT_BETTER for height in heights])
    else:
        for colour, areas in ((_BETTER, np.maximum(heights, 0)), (_NOT_BETTER, np.minimum(heights, 0))):
            axes.fill_between(range(len(ordered)), areas, step="mid", color=colour, linewidth=0)
    axes.axhline(0, color="black", linewidth=0.8)
    for end in np.cumsum(sizes).tolist() if len(sizes) <= _MOST_LINES else ():
        axes.axvline(end - 0.5, color="0.7", linewidth=0.8, zorder=0)
    name_clients(axes, "x", ordered, called)
    axes.set_xlim(-0.5, len(ordered) - 0.5)
    better = sum(height > 0 for height in heights)
    axes.set(
        xlabel="client, by group",
        ylabel=f"{literal(score)} gained over training alone{', points' if score == ACCURACY else ''}",
        title=f"{better} of {len(ordered)} clients are better off than alone",
    )


def _draw_loss(axes: Axes, run: Shown) -> None:
    axes.plot([row["round"] for row in run.evaluated], [row["loss"] for row in run.evaluated], marker=".")
    _by_round(axes, "loss")


def _draw_distances(axes: Axes, run: Shown) -> None:
    assert run.distances is not None
    image = draw_distances(axes, *run.distances, run.partition, run.names)
    axes.set_title("distances, and coalitions outlined")
    axes.figure.colorbar(image, ax=axes, label="distance, 1 if unknown")


def _draw_groups(axes: Axes, run: Shown) -> None:
    assert run.groups is not None
    _paint_groups(axes, run.groups, run.names)


#: Panel -> what draws it.
PANELS: dict[str, Callable[[Axes, Shown], None]] = {
    "score": lambda axes, run: draw_score(axes, run.rows, run.curves),
    "loss": _draw_loss,
    "metrics": lambda axes, run: _draw_metrics(axes, run.metrics),
    "groups": _draw_groups,
    "distances": _draw_distances,
    "gains": lambda axes, run: _draw_gains(axes, run.gains, run.partition, scored_by(run.rows[-1]), run.names),
}
