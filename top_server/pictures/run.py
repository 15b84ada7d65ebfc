"""Draws a run: how well it served its clients, who trained with whom, and how far apart their data are.

Needs the `plots` extra.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError, DataError
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from top_server.baseline import local_run
from top_server.baseline.gains import gained
from top_server.pictures.distances import by_coalition, draw_distances, name_clients, read_distances
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import HashableList

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]

#: Colours that can be told apart; groups beyond share them.
_COLOURS = 20
_BETTER, _NOT_BETTER = "#2f9e44", "#e8590c"


def draw(run_dir: Path, out: Path) -> None:
    """Writes one picture of what `run_dir` holds; raises UserError if there is nothing to draw, or no matplotlib."""
    directory = RunDirectory(run_dir)
    rows = read_lines(directory.history)
    if any(not {"round", "accuracy", "loss"} <= row.keys() for row in rows):
        raise DataError(f"{directory.history} is not the history of a run", "give the directory of a run")
    if not rows:
        raise DataError(f"{run_dir} holds no finished round", "draw it when a round has ended")
    distances = read_distances(directory.distances)
    gains = gains_over(recorded_alone(directory), rows)
    try:
        import matplotlib as mpl
        from matplotlib import pyplot as plt
    except ImportError:
        raise ConfigError("drawing needs matplotlib", "install the extra: pip install 'fedgsp[plots]'") from None
    mpl.use("Agg")
    layout = panels(any("partition" in row for row in rows), distances is not None, bool(gains))
    size = (5 * len(layout[0]), 4.2 * len(layout))
    figure, axes = plt.subplot_mosaic(layout, figsize=size, layout="constrained")
    partition = last_partition(rows)
    _accuracy(axes["accuracy"], rows)
    _loss(axes["loss"], rows)
    if "groups" in axes:
        _groups(axes["groups"], rows)
    if distances is not None:
        image = draw_distances(axes["distances"], *distances, partition)
        axes["distances"].set_title("distances, and coalitions outlined")
        figure.colorbar(image, ax=axes["distances"], label="distance")
    if gains:
        _gains(axes["gains"], gains, partition)
    figure.suptitle(run_dir.resolve().name)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {out} cannot be written: {error}", "give a file name such as run.png") from None
    finally:
        plt.close(figure)


def panels(grouped: bool, distances: bool, gains: bool) -> list[HashableList[str]]:
    """What is drawn where, row by row; gains, with a bar per client, take what is left of a row of their own."""
    upper: HashableList[str] = ["accuracy", "loss", *(["groups"] if grouped else [])]
    matrix: HashableList[str] = ["distances"] if distances else []
    if not gains:
        return [upper + matrix]
    return [upper, matrix + ["gains"] * (len(upper) - len(matrix))]


def recorded_alone(directory: RunDirectory) -> dict[int, float]:
    """The accuracy that each client reached alone; empty if the run was compared with no such run, or it is gone."""
    if not directory.config.exists():
        return {}
    try:
        settings = load(RunConfig, directory.config)
        return (local_run.recorded(settings) if settings.local_run else None) or {}
    except ConfigError as error:
        logger.warning("gains over training alone are not drawn: %s", error)
        return {}


def gains_over(alone: dict[int, float], rows: Rows) -> dict[int, float]:
    """What each client gained over training alone at the last evaluation; for those in both."""
    reached: dict[str, float] = next(
        (row["accuracy_per_client"] for row in reversed(rows) if row.get("accuracy_per_client")), {}
    )
    return gained({int(client): value for client, value in reached.items()}, alone)


def last_partition(rows: Rows) -> list[list[int]]:
    """Who trained together at the end; empty if no row tells."""
    found: list[list[int]] = next((row["partition"] for row in reversed(rows) if row.get("partition")), [])
    return found


def partition_image(partitions: list[list[list[int]] | None]) -> tuple[list[int], NDArray[np.float64]]:
    """The clients, ascending; shape (clients, rounds): the smallest member of each one's group, NaN if in none."""
    clients = sorted({client for found in partitions for group in found or [] for client in group})
    place = {client: row for row, client in enumerate(clients)}
    image = np.full((max(1, len(clients)), len(partitions)), np.nan)
    for column, found in enumerate(partitions):
        for group in found or []:
            image[[place[client] for client in group], column] = min(group)
    return clients, image


def _accuracy(axes: Axes, rows: Rows) -> None:
    for number, curve in enumerate(_per_client(rows).values()):
        axes.plot(*curve, color="0.8", linewidth=0.8, zorder=1, label="_" if number else "each client")
    evaluated = [row for row in rows if row["accuracy"] is not None]
    accuracies = [100 * row["accuracy"] for row in evaluated]
    axes.plot([row["round"] for row in evaluated], accuracies, marker=".", label="over all samples")
    axes.legend()
    _by_round(axes, "accuracy on the clients' test parts, %")
    compared = [row for row in evaluated if row.get("ipr") is not None and row.get("rsd") is not None]
    if compared:
        last = compared[-1]
        axes.set_title(f"round {last['round']}: IPR {100 * last['ipr']:.1f} %, RSD {100 * last['rsd']:.1f} %")


def _loss(axes: Axes, rows: Rows) -> None:
    evaluated = [row for row in rows if row["accuracy"] is not None]
    axes.plot([row["round"] for row in evaluated], [row["loss"] for row in evaluated], marker=".")
    _by_round(axes, "loss")


def _groups(axes: Axes, rows: Rows) -> None:
    from matplotlib.ticker import MaxNLocator

    first, last = rows[0]["round"], rows[-1]["round"]
    clients, image = partition_image([row.get("partition") for row in rows])
    names = dict(enumerate(map(str, clients)))
    extent = (first - 0.5, last + 0.5, image.shape[0] - 0.5, -0.5)
    axes.imshow(
        image % _COLOURS,
        cmap="tab20",
        aspect="auto",
        extent=extent,
        interpolation="nearest",
        vmin=0,
        vmax=_COLOURS - 1,
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda row, _: names.get(round(row), ""))
    axes.set_title("a colour is a group, that of its first member")
    _by_round(axes, "client")


def _by_round(axes: Axes, shown: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="round", ylabel=shown)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _gains(axes: Axes, gains: dict[int, float], partition: list[list[int]]) -> None:
    ordered, sizes = by_coalition(list(gains), partition)
    heights = [100 * gains[client] for client in ordered]
    axes.bar(range(len(ordered)), heights, color=[_BETTER if height > 0 else _NOT_BETTER for height in heights])
    axes.axhline(0, color="black", linewidth=0.8)
    for end in np.cumsum(sizes).tolist() if len(sizes) <= _COLOURS else ():
        axes.axvline(end - 0.5, color="0.7", linewidth=0.8, zorder=0)
    name_clients(axes, "x", ordered)
    axes.set_xlim(-0.5, len(ordered) - 0.5)
    better = sum(height > 0 for height in heights)
    axes.set(
        xlabel="client, by group",
        ylabel="accuracy gained over training alone, points",
        title=f"{better} of {len(ordered)} clients are better off than alone",
    )


def _per_client(rows: Rows) -> dict[str, tuple[list[int], list[float]]]:
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for client, accuracy in (row.get("accuracy_per_client") or {}).items():
            rounds, accuracies = curves.setdefault(client, ([], []))
            rounds.append(row["round"])
            accuracies.append(100 * accuracy)
    return curves
