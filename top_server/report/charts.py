"""The charts of a report, as images that stand in the page itself. Needs the `plots` extra."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.scoring import ACCURACY
from fedgsp.words import counted
from top_server.pictures.distances import literal, name_clients
from top_server.pictures.run import PANELS, pyplot
from top_server.pictures.shown import Shown, shown, teams_by_round, teams_of
from top_server.record.directory import RunDirectory
from top_server.report.comparison import Curve, Variant, band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Larger drawings become images of points: a curve of each of many clients would make the page slow.
_MOST_SVG_BYTES = 300_000
_WIDE, _NARROW = (10.0, 4.2), (5.6, 3.8)
#: Letters of the name of a variant in one line.
_LINE = 80
#: Height of such a line, and how the curves of variants are drawn.
_INCHES_PER_LINE, _STYLES = 0.15, ("-", "--", ":", "-.")
#: Clients along a side of the matrix of who trained with whom, at most.
MOST_PAIRED = 150
_TITLES = {
    "score": "Score by round",
    "loss": "Loss by round",
    "metrics": "Metrics of the task by round",
    "groups": "Who trained with whom, by round",
    "together": "How often two clients trained in one group",
    "distances": "Distances between the data of clients",
    "gains": "Gain of each client over training alone",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """An image for the page, as a data URI, and for those who cannot see it a text."""

    name: str
    title: str
    text: str
    #: The bytes of the image, and their type.
    image: bytes
    type: str

    @property
    def uri(self) -> str:
        """The image as the address of an <img>, which runs no script."""
        return f"data:{self.type};base64,{base64.b64encode(self.image).decode()}"

    @property
    def ending(self) -> str:
        """The ending of the name of a file with this image."""
        return ".svg" if "svg" in self.type else ".png"


def charts_of(run_dir: Path, prefix: str) -> Iterator[Chart]:
    """The charts of one run; none if it has no finished round. `prefix` begins the name of each."""
    if not RunDirectory(run_dir).history.is_file() or not RunDirectory(run_dir).history.stat().st_size:
        return
    run = shown(run_dir)
    there = {
        "score": True,
        "loss": bool(run.evaluated) and not run.rated_by_loss,
        "metrics": bool(run.metrics),
        "groups": run.groups is not None,
        "distances": run.distances is not None,
        "gains": bool(run.gains),
    }
    for name in (name for name, is_there in there.items() if is_there):
        wide = name == "groups" and run.groups is not None and run.groups.wide
        yield _chart(prefix, name, partial(_draw_panel, name=name, run=run), _WIDE if wide else _NARROW)
    teams = teams_by_round(run.rows) or teams_of(RunDirectory(run_dir))
    if (pairs := together(teams)) is not None:
        yield _chart(prefix, "together", partial(_draw_together, run=run, clients=pairs[0], pairs=pairs[1]))


def comparing(found: Sequence[Variant]) -> Iterator[Chart]:
    """The charts of several variants: the mean over their runs as a line, and the range of the runs behind it."""
    rated = found[0].runs[0].rated_by
    alike = [one for one in found if one.runs[0].rated_by == rated]
    factor = 100 if rated == ACCURACY else 1
    label = f"{literal(rated)}{', %' if rated == ACCURACY else ''}"
    yield _chart("compared", "score", lambda axes: _bands(axes, alike, lambda one: one.scores, label, factor))
    yield _chart("compared", "loss", lambda axes: _bands(axes, found, lambda one: one.losses, "loss", 1))


def together(teams: Mapping[int, list[list[int]]]) -> tuple[list[int], NDArray[np.int64]] | None:
    """Clients, ascending, and in how many rounds each two of them trained in one group; None if nobody knows.

    `teams` has the groups of each round. Of more than `MOST_PAIRED` clients the first ones are taken.
    """
    clients = clients_of(teams)[:MOST_PAIRED]
    if len(clients) < 2:
        return None
    place = {client: number for number, client in enumerate(clients)}
    pairs = np.zeros((len(clients), len(clients)), np.int64)
    for groups in teams.values():
        for group in groups:
            members = sorted({place[client] for client in group if client in place})
            pairs[np.ix_(members, members)] += 1
    np.fill_diagonal(pairs, 0)
    return clients, pairs


def clients_of(teams: Mapping[int, list[list[int]]]) -> list[int]:
    """The clients that trained in some round, ascending."""
    return sorted({client for groups in teams.values() for group in groups for client in group})


def _draw_panel(axes: Axes, name: str, run: Shown) -> None:
    PANELS[name](axes, run)


def _draw_together(axes: Axes, run: Shown, clients: list[int], pairs: NDArray[np.int64]) -> None:
    from matplotlib.ticker import MaxNLocator

    shown = np.where(np.eye(len(clients), dtype=bool), np.nan, pairs)  # nobody trains with itself
    image = axes.imshow(shown, cmap="viridis", vmin=0, interpolation="nearest")
    name_clients(axes, "x", clients, run.names)
    name_clients(axes, "y", clients, run.names)
    axes.set(xlabel="client", ylabel="client")
    axes.figure.colorbar(image, ax=axes, label="rounds in one group", ticks=MaxNLocator(integer=True))


def _bands(
    axes: Axes, found: Sequence[Variant], curves: Callable[[Variant], list[Curve]], label: str, factor: float
) -> None:
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.ticker import MaxNLocator

    # With another style a colour comes again: 40 variants look different.
    axes.set_prop_cycle(cycler(linestyle=_STYLES) * cycler(color=mpl.color_sequences["tab10"]))
    for one in found:
        told = band([curve for curve in curves(one) if curve])
        if not told.rounds:
            continue
        scaled: Any = [factor * np.array(values) for values in (told.mean, told.least, told.most)]
        name = textwrap.fill(f"{literal(one.name)} ({counted(len(one.runs), 'run')})", _LINE)
        (line,) = axes.plot(told.rounds, scaled[0], marker=".", label=name)
        axes.fill_between(told.rounds, scaled[1], scaled[2], color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure: Any = axes.figure
    lines = sum(1 + str(line.get_label()).count("\n") for line in axes.lines)
    figure.set_figheight(_NARROW[1] + lines * _INCHES_PER_LINE)
    if lines:
        figure.legend(loc="outside lower left", fontsize=7)  # over the curves it would hide them


def _chart(prefix: str, name: str, draw: Callable[[Axes], None], size: tuple[float, float] = _NARROW) -> Chart:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    try:
        draw(axes)
        axes.title.set(fontsize=8, wrap=True)
        written, ending = io.BytesIO(), "svg+xml"
        figure.savefig(written, format="svg", metadata={"Date": None})
        if written.tell() > _MOST_SVG_BYTES:
            written, ending = io.BytesIO(), "png"
            figure.savefig(written, format="png", dpi=150)
    finally:
        plt.close(figure)
    title = _TITLES[name]
    return Chart(f"{prefix}-{name}", title, f"Chart: {title}", written.getvalue(), f"image/{ending}")
