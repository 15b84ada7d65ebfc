"""What a picture or a report of a run shows, read from its directory; nothing is drawn here."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError, UserError
from fedgsp.scoring import LOSS, metric_of
from fedgsp.settings.recorded import load_recorded
from top_server.baseline import local_run
from top_server.pictures.distances import UndrawnError, read_distances
from top_server.pictures.groups import FEW, MANY, Groups, fitting, some
from top_server.pictures.kept import Kept, Rows
from top_server.record.columns import EVENTS, HISTORY, is_client
from top_server.record.directory import RunDirectory
from top_server.record.history import checked_lines, lines_of
from top_server.record.scores import score_of, scored_by, scores_of

logger = logging.getLogger(__name__)

#: Metrics of the task in one panel, at most.
_MOST_METRICS = 8
#: Curves of single clients, at most: each takes 10 kB.
MOST_CURVES = 1_000


@dataclass(frozen=True, slots=True)
class Curves:
    """The scores of single clients, by client and round; of many clients, those of some."""

    of: dict[int, dict[int, float]]
    #: How many clients have scores.
    clients: int


@dataclass(frozen=True, slots=True)
class Shown:
    """What can be drawn of a run with at least one finished round."""

    #: As `Kept` has them.
    rows: Rows
    #: The rows of rounds that were evaluated.
    evaluated: Rows
    #: Who trained with whom; None if the record does not say.
    groups: Groups | None
    curves: Curves
    #: What people call clients; only clients that have names.
    names: dict[int, str]
    #: Metric of the task -> round -> value.
    metrics: dict[str, dict[int, float]]
    #: Clients and the distances between their data; None in runs that do not measure them, or too many of them.
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
    clients, kept = defaultdict[str, dict[int, None]](dict), Kept()
    for row in checked_lines(directory.history, HISTORY):
        clients[scored_by(row)] |= dict.fromkeys(scores_of(row))
        kept.add(row)
    rows = kept.rows
    if not rows:
        raise DataError(f"{run_dir} holds no finished round", "draw it when a round has ended")
    evaluated = [row for row in rows if row["loss"] is not None]
    return Shown(
        rows,
        evaluated,
        groups_by_round(rows, lambda: teams_of(directory)),
        _curves(rated_by(rows), clients, lines_of(directory.history)),
        names_of(directory),
        further_metrics(evaluated),
        _distances(directory),
        gains_over(recorded_alone(directory), rows),
    )


def rated_by(rows: Rows) -> str:
    """What rates the models in the last row that has a score, else in the last row."""
    return next((scored_by(row) for row in reversed(rows) if score_of(row) is not None), scored_by(rows[-1]))


def _curves(score: str, clients: Mapping[str, Mapping[int, None]], rows: Iterable[Mapping[str, Any]]) -> Curves:
    """The curves of one score. They are read again, and not kept for all `clients`, which may be very many."""
    known = list(clients[score])
    drawn: dict[int, dict[int, float]] = {client: {} for client in some(known, MOST_CURVES)}
    for row in rows if drawn else ():
        if scored_by(row) == score:
            found = scores_of(row)
            for client in drawn.keys() & found.keys():
                drawn[client][row["round"]] = found[client]
    return Curves(drawn, len(known))


def _distances(directory: RunDirectory) -> tuple[list[int], NDArray[np.float64]] | None:
    try:
        return read_distances(directory.distances)
    except UndrawnError as error:
        logger.warning("%s", error)
        return None


def groups_by_round(rows: Rows, teams: Callable[[], Mapping[int, list[list[int]]]]) -> Groups | None:
    """The partitions in the history, else the groups that trained according to the events; None without either.

    `teams` reads the groups of the events. The history has partitions if groups or clients have models of their own,
    or if all clients train: such groups last. Groups of other schemes are new in each round.
    """
    rounds = range(rows[0]["round"], rows[-1]["round"] + 1)
    if partitions := teams_by_round(rows):
        return fitting(partitions, rounds, lasting=True, room=MANY)
    return fitting(teams(), rounds, lasting=False, room=FEW)


def teams_by_round(rows: Rows) -> dict[int, list[list[int]]]:
    """The groups of each round, by the history; empty if it has none."""
    return {row["round"]: row["partition"] for row in rows if row.get("partition")}


def teams_of(directory: RunDirectory) -> dict[int, list[list[int]]]:
    """The groups that trained in each round; the last try of a round counts."""
    try:
        return started_teams(checked_lines(directory.events, EVENTS))
    except DataError as error:
        logger.warning("groups are not drawn: %s", error)
        return {}


def started_teams(events: Iterable[Mapping[str, Any]]) -> dict[int, list[list[int]]]:
    """As `teams_of`, of events that were read before."""
    started = (event for event in events if event.get("event") == "round_started" and event.get("teams") is not None)
    return {event["round"]: event["teams"] for event in started if event.get("round") is not None}


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


def names_of(directory: RunDirectory) -> dict[int, str]:
    """What people call clients, by the events of the run; only clients that have names."""
    try:
        joined = [event.get("names") for event in lines_of(directory.events)]
    except DataError:  # the picture of the groups says so
        return {}
    found = {client: name for names in joined if isinstance(names, dict) for client, name in names.items()}
    return {int(client): name for client, name in found.items() if is_client(client) and isinstance(name, str)}


def further_metrics(evaluated: Rows) -> dict[str, dict[int, float]]:
    """Metric -> round -> value, of at most `_MOST_METRICS` metrics of the task beside the one that is the score."""
    shown = {metric_of(scored_by(row)) for row in evaluated}
    told = {row["round"]: row.get("metrics") or {} for row in evaluated}
    names = dict.fromkeys(name for metrics in told.values() for name in metrics if name not in shown)
    return {
        name: {number: metrics[name] for number, metrics in told.items() if metrics.get(name) is not None}
        for name in list(names)[:_MOST_METRICS]
    }
