"""Draws a run: score, loss and metrics by round, who trained with whom, distances between data, gains over alone.

Needs the `plots` extra.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError, DataError
from fedgsp.scoring import ACCURACY, LOSS, larger_is_better, metric_of
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from fedgsp.words import share, with_name
from top_server.baseline import local_run
from top_server.pictures.distances import by_coalition, draw_distances, literal, name_clients, read_distances
from top_server.record.directory import RunDirectory
from top_server.record.history import read_columns, read_lines
from top_server.record.scores import score_of, scored_by, scores_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import HashableList

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]

#: Palettes of 20 colours each; further groups use the same colours again.
_PALETTES = ("tab20", "tab20b", "tab20c")
_COLOURS = 20 * len(_PALETTES)
#: The bars of gains have lines between groups, if there are no more groups than this.
_MOST_LINES = 20
#: A matrix of more rounds or clients gets a row of the picture for itself; its height grows with its clients.
_NARROW = 60
_ROW_INCHES, _INCHES_PER_CLIENT, _TALLEST_INCHES = 4.2, 0.06, 9.0
#: Groups that change in each round are drawn for the last rounds and for some clients: more would be noise.
_MOST_ROUNDS, _MOST_CLIENTS = 100, 150
#: A history with later rounds is damaged: the picture would have a column for each.
_LAST_ROUND = 1_000_000
#: Metrics of the task in one panel, at most.
_MOST_METRICS = 8
_BETTER, _NOT_BETTER = "#2f9e44", "#e8590c"


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _is_round(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LAST_ROUND


def _are_figures(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(client.isdecimal() and _is_number(value[client]) for client in value)
    )


def _are_groups(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(group, list) and group and {*map(type, group)} == {int} for group in value)
    )


#: What is drawn of the history, and of the events -> whether a value of it can be drawn.
_COLUMNS = {
    "round": _is_round,
    **dict.fromkeys(("accuracy", "loss", "score", "ipr", "rsd"), _is_number),
    **dict.fromkeys(("accuracy_per_client", "score_per_client"), _are_figures),
    "scored_by": lambda value: value is None or isinstance(value, str),
    "metrics": lambda value: value is None or (isinstance(value, dict) and all(map(_is_number, value.values()))),
    "partition": _are_groups,
}
_OF_EVENTS = {"round": lambda value: value is None or _is_round(value), "teams": _are_groups}


def draw(run_dir: Path, out: Path) -> None:
    """Writes a picture of the run in `run_dir` to the file `out`: score, loss, metrics, and who trained with whom.

    Raises UserError if the run has no finished round, or if matplotlib is not installed.
    """
    directory = RunDirectory(run_dir)
    rows = read_columns(directory.history, _COLUMNS)
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
    groups = groups_by_round(directory, rows)
    names = names_of(directory)
    evaluated = [row for row in rows if row["loss"] is not None]
    metrics = further_metrics(evaluated)
    by_loss = bool(evaluated) and metric_of(scored_by(evaluated[-1])) == LOSS
    layout = panels(groups, distances is not None, bool(gains), loss=not by_loss, metrics=bool(metrics))
    heights = [_height(row, groups) for row in layout]
    figure, axes = plt.subplot_mosaic(
        layout, figsize=(5 * len(layout[0]), sum(heights)), layout="constrained", height_ratios=heights
    )
    partition = last_partition(rows)
    draw_score(axes["score"], rows)
    if "loss" in axes:
        axes["loss"].plot([row["round"] for row in evaluated], [row["loss"] for row in evaluated], marker=".")
        _by_round(axes["loss"], "loss")
    if metrics:
        _metrics(axes["metrics"], metrics)
    if groups is not None:
        _groups(axes["groups"], groups, names)
    if distances is not None:
        image = draw_distances(axes["distances"], *distances, partition, names)
        axes["distances"].set_title("distances, and coalitions outlined")
        figure.colorbar(image, ax=axes["distances"], label="distance")
    if gains:
        _gains(axes["gains"], gains, partition, scored_by(rows[-1]), names)
    figure.suptitle(run_dir.resolve().name)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {out} cannot be written: {error}", "give a file name such as run.png") from None
    finally:
        plt.close(figure)


@dataclass(frozen=True, slots=True)
class Groups:
    """Who trained with whom: client numbers, ascending, and an image of shape (clients, rounds).

    A value is the number of the client's group in that round, NaN for a client without a group.
    """

    rounds: range
    clients: list[int]
    image: NDArray[np.float64]
    #: How to read the colours.
    title: str

    @property
    def wide(self) -> bool:
        """Whether there are too many clients or rounds for a narrow panel."""
        return max(len(self.rounds), len(self.clients)) > _NARROW


def panels(
    groups: Groups | None, distances: bool, gains: bool, loss: bool = True, metrics: bool = False
) -> list[HashableList[str]]:
    """The panels, row by row: many groups have a row for themselves, gains the rest of a second row."""
    there = {"score": True, "loss": loss, "metrics": metrics, "groups": groups is not None and not groups.wide}
    upper: HashableList[str] = [name for name, shown in there.items() if shown]
    matrix: HashableList[str] = ["distances"] if distances else []
    rows = [upper, matrix + ["gains"] * (len(upper) - len(matrix))] if gains else [upper + matrix]
    return [*rows, ["groups"] * len(rows[0])] if groups is not None and groups.wide else rows


def groups_by_round(directory: RunDirectory, rows: Rows) -> Groups | None:
    """The partitions in the history, else the groups that trained according to the events; None without either.

    The history has partitions if groups or clients have models of their own, or if all clients train. The colour of
    such a group is that of its first member, so that a lasting group keeps its colour. Groups of other schemes are new
    in each round: their colour is their number, and `_MOST_ROUNDS` and `_MOST_CLIENTS` limit what is drawn.
    """
    first, last = rows[0]["round"], rows[-1]["round"]
    partitions = {row["round"]: row["partition"] for row in rows if row.get("partition")}
    if partitions:
        rounds = range(first, last + 1)
        clients, image = group_image([partitions.get(number) for number in rounds], by_member=True)
        return Groups(rounds, clients, image, "a group has the colour of its first member")
    rounds = range(max(first, last - _MOST_ROUNDS + 1), last + 1)
    teams = _teams(directory)
    clients, image = group_image([teams.get(number) for number in rounds], by_member=False)
    if not clients:
        return None
    shown = np.unique(np.linspace(0, len(clients) - 1, _MOST_CLIENTS).round().astype(int))
    title = (
        f"{share(len(shown), len(clients), 'client')}, {share(len(rounds), last - first + 1, 'round')}:"
        " a colour is a group of its round, white did not train"
    )
    return Groups(rounds, [clients[row] for row in shown], image[shown], title)


def _teams(directory: RunDirectory) -> dict[int, list[list[int]]]:
    """The groups that trained in each round; the last try of a round counts."""
    try:
        events = read_columns(directory.events, _OF_EVENTS)
    except DataError as error:
        logger.warning("groups are not drawn: %s", error)
        return {}
    started = [event for event in events if event.get("event") == "round_started" and event.get("teams") is not None]
    return {event["round"]: event["teams"] for event in started}


def _height(panels: HashableList[str], groups: Groups | None) -> float:
    if groups is None or set(panels) != {"groups"}:
        return _ROW_INCHES
    return min(max(_ROW_INCHES, len(groups.clients) * _INCHES_PER_CLIENT), _TALLEST_INCHES)


def recorded_alone(directory: RunDirectory) -> dict[int, float]:
    """The score that each client reached alone; empty without a local run, or if the local run is gone."""
    if not directory.config.exists():
        return {}
    try:
        settings = load(RunConfig, directory.config)
        return (local_run.recorded(settings) if settings.local_run else None) or {}
    except ConfigError as error:
        logger.warning("gains over training alone are not drawn: %s", error)
        return {}


def gains_over(alone: dict[int, float], rows: Rows) -> dict[int, float]:
    """Gain of each client over training alone at the last evaluation; only of clients that are in both runs."""
    reached: dict[int, float] = next(filter(None, map(scores_of, reversed(rows))), {})
    return local_run.gained(reached, alone)


def last_partition(rows: Rows) -> list[list[int]]:
    """The groups of the last row that has any; empty if no row has."""
    return next((list(row["partition"]) for row in reversed(rows) if row.get("partition")), [])


def group_image(rounds: list[list[list[int]] | None], by_member: bool) -> tuple[list[int], NDArray[np.float64]]:
    """The clients, ascending, and their groups in each round, shape (clients, rounds); NaN for clients in no group.

    The value of a group is its smallest client with `by_member`, else its position in the round.
    """
    clients = sorted({client for found in rounds for group in found or [] for client in group})
    place = {client: row for row, client in enumerate(clients)}
    image = np.full((max(1, len(clients)), len(rounds)), np.nan)
    for column, found in enumerate(rounds):
        for number, group in enumerate(found or []):
            image[[place[client] for client in group], column] = min(group) if by_member else number
    return clients, image


def names_of(directory: RunDirectory) -> dict[int, str]:
    """What people call clients, by the events of the run; only clients that have names."""
    try:
        joined = [event.get("names") for event in read_lines(directory.events)]
    except DataError:  # the picture of the groups says so
        return {}
    found = {client: name for names in joined if isinstance(names, dict) for client, name in names.items()}
    return {int(client): name for client, name in found.items() if client.isdecimal() and isinstance(name, str)}


def further_metrics(evaluated: Rows) -> dict[str, dict[int, float]]:
    """Metric -> round -> value, of at most `_MOST_METRICS` metrics of the task beside the one that is the score."""
    shown = {metric_of(scored_by(row)) for row in evaluated}
    told = {row["round"]: row.get("metrics") or {} for row in evaluated}
    names = dict.fromkeys(name for metrics in told.values() for name in metrics if name not in shown)
    return {
        name: {number: metrics[name] for number, metrics in told.items() if metrics.get(name) is not None}
        for name in list(names)[:_MOST_METRICS]
    }


def draw_score(axes: Axes, rows: Rows) -> None:
    """Draws the figure that rates the models, by round: over all samples, and of each client if the rows have it."""
    score = next((scored_by(row) for row in reversed(rows) if score_of(row) is not None), scored_by(rows[-1]))
    factor = (100 if score == ACCURACY else 1) * (1 if larger_is_better(score) else -1)
    by_round = {row["round"]: scores_of(row) for row in rows if scored_by(row) == score}
    for number, client in enumerate(dict.fromkeys(client for found in by_round.values() for client in found)):
        curve = {played: factor * found[client] for played, found in by_round.items() if client in found}
        label = "_" if number else "each client"
        axes.plot(list(curve), list(curve.values()), color="0.8", linewidth=0.8, zorder=1, label=label)
    told = {row["round"]: factor * value for row in rows if (value := score_of(row)) is not None}
    axes.plot(list(told), list(told.values()), marker=".", label="over all clients")
    axes.legend()
    _by_round(axes, f"{literal(metric_of(score))} on the clients' test parts{', %' if score == ACCURACY else ''}")
    compared = [row for row in rows if row.get("ipr") is not None and row.get("rsd") is not None]
    if compared:
        last = compared[-1]
        rsd = f"{100 * last['rsd']:.1f} %" if score == ACCURACY else f"{last['rsd']:.4g}"
        axes.set_title(f"round {last['round']}: IPR {100 * last['ipr']:.1f} %, RSD {rsd}")


def _metrics(axes: Axes, metrics: dict[str, dict[int, float]]) -> None:
    for name, curve in metrics.items():
        axes.plot(list(curve), list(curve.values()), marker=".", label=literal(name))
    axes.legend()
    _by_round(axes, "metrics of the task")


def _groups(axes: Axes, groups: Groups, called: Mapping[int, str]) -> None:
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    names = dict(enumerate(literal(with_name(client, called)) for client in groups.clients))
    axes.imshow(
        groups.image % _COLOURS,
        # The palettes have light colours beside dark ones: the dark colours come first, as they differ more.
        cmap=ListedColormap(
            [mpl.colormaps[name](i) for name in _PALETTES for i in (*range(0, 20, 2), *range(1, 20, 2))]
        ),
        aspect="auto",
        extent=(groups.rounds[0] - 0.5, groups.rounds[-1] + 0.5, groups.image.shape[0] - 0.5, -0.5),
        interpolation="nearest",
        vmin=0,
        vmax=_COLOURS - 1,
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda row, _: names.get(round(row), ""))
    axes.set_title(groups.title)
    _by_round(axes, "client")


def _by_round(axes: Axes, shown: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="round", ylabel=shown)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _gains(
    axes: Axes, gains: dict[int, float], partition: list[list[int]], score: str, called: Mapping[int, str]
) -> None:
    ordered, sizes = by_coalition(list(gains), partition)
    heights = [(100 if score == ACCURACY else 1) * gains[client] for client in ordered]
    axes.bar(range(len(ordered)), heights, color=[_BETTER if height > 0 else _NOT_BETTER for height in heights])
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
