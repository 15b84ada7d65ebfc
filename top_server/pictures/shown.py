"""What a picture or a report of a run shows, read from its directory; nothing is drawn here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError, UserError
from fedgsp.scoring import LOSS, is_figure, metric_of
from fedgsp.settings.recorded import load_recorded
from fedgsp.words import share
from top_server.baseline import local_run
from top_server.pictures.distances import read_distances
from top_server.record.directory import RunDirectory
from top_server.record.history import lines_of, read_columns
from top_server.record.scores import scored_by, scores_of

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]

#: A matrix of more rounds or clients is wide.
_NARROW = 60
#: Groups that change in each round are drawn for the last rounds and for some clients: more would be noise.
_MOST_ROUNDS, _MOST_CLIENTS = 100, 150
#: A history with later rounds is damaged: the picture would have a column for each.
_LAST_ROUND = 1_000_000
#: Metrics of the task in one panel, at most.
_MOST_METRICS = 8


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and is_figure(value))


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


@dataclass(frozen=True, slots=True)
class Shown:
    """What can be drawn of a run with at least one finished round."""

    rows: Rows
    #: The rows of rounds that were evaluated.
    evaluated: Rows
    #: Who trained with whom; None if the record does not say.
    groups: Groups | None
    #: What people call clients; only clients that have names.
    names: dict[int, str]
    #: Metric of the task -> round -> value.
    metrics: dict[str, dict[int, float]]
    #: Clients and the distances between their data; None in runs that do not measure them.
    distances: tuple[list[int], NDArray[np.float64]] | None
    #: What each client gained over training alone; empty without a local run.
    gains: dict[int, float]

    @property
    def partition(self) -> list[list[int]]:
        """The groups of the last row that has any; empty if no row has."""
        return last_partition(self.rows)

    @property
    def rated_by_loss(self) -> bool:
        """Whether the loss itself rates the models."""
        return bool(self.evaluated) and metric_of(scored_by(self.evaluated[-1])) == LOSS


def shown(run_dir: Path) -> Shown:
    """Reads the record of a run; raises UserError if it has no finished round, or is damaged."""
    directory = RunDirectory(run_dir)
    rows = read_columns(directory.history, _COLUMNS)
    if not rows:
        raise DataError(f"{run_dir} holds no finished round", "draw it when a round has ended")
    evaluated = [row for row in rows if row["loss"] is not None]
    return Shown(
        rows,
        evaluated,
        groups_by_round(rows, lambda: teams_of(directory)),
        names_of(directory),
        further_metrics(evaluated),
        read_distances(directory.distances),
        gains_over(recorded_alone(directory), rows),
    )


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


def groups_by_round(
    rows: Rows, teams: Callable[[], Mapping[int, list[list[int]]]], most_clients: int = _MOST_CLIENTS
) -> Groups | None:
    """The partitions in the history, else the groups that trained according to the events; None without either.

    `teams` reads the groups of the events. The history has partitions if groups or clients have models of their own,
    or if all clients train. The colour of
    such a group is that of its first member, so that a lasting group keeps its colour. Groups of other schemes are new
    in each round: their colour is their number, and `_MOST_ROUNDS` and `most_clients` limit what is drawn.
    """
    first, last = rows[0]["round"], rows[-1]["round"]
    if partitions := teams_by_round(rows):
        rounds = range(first, last + 1)
        clients, image = group_image([partitions.get(number) for number in rounds], by_member=True)
        return Groups(rounds, clients, image, "a group has the colour of its first member")
    rounds = range(max(first, last - _MOST_ROUNDS + 1), last + 1)
    trained = teams()
    clients, image = group_image([trained.get(number) for number in rounds], by_member=False)
    if not clients:
        return None
    shown = np.unique(np.linspace(0, len(clients) - 1, most_clients).round().astype(int))
    title = (
        f"{share(len(shown), len(clients), 'client')}, {share(len(rounds), last - first + 1, 'round')}:"
        " a colour is a group of its round, white did not train"
    )
    return Groups(rounds, [clients[row] for row in shown], image[shown], title)


def teams_by_round(rows: Rows) -> dict[int, list[list[int]]]:
    """The groups of each round, by the history; empty if it has none."""
    return {row["round"]: row["partition"] for row in rows if row.get("partition")}


def teams_of(directory: RunDirectory) -> dict[int, list[list[int]]]:
    """The groups that trained in each round; the last try of a round counts."""
    try:
        events = read_columns(directory.events, _OF_EVENTS)
    except DataError as error:
        logger.warning("groups are not drawn: %s", error)
        return {}
    return started_teams(events)


def started_teams(events: Iterable[Mapping[str, Any]]) -> dict[int, list[list[int]]]:
    """As `teams_of`, of events that were read before."""
    started = [event for event in events if event.get("event") == "round_started" and event.get("teams") is not None]
    return {event["round"]: event["teams"] for event in started}


def recorded_alone(directory: RunDirectory) -> dict[int, float]:
    """The score that each client reached alone; empty without a local run, or if the local run is gone."""
    if not directory.config.exists():
        return {}
    try:
        settings = load_recorded(directory.config)
        return (local_run.recorded(settings) if settings.local_run else None) or {}
    except UserError as error:
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
        joined = [event.get("names") for event in lines_of(directory.events)]
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
