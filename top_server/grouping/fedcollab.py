"""FedCollab: coalitions that are formed before training, from distances between the clients' data, and then stay."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedgsp import seeds
from fedgsp.discriminators import UNKNOWN
from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from top_server.grouping.coalition_margin import Margin, margin
from top_server.grouping.coalitions import place, solve
from top_server.grouping.pairwise import square
from top_server.grouping.request import GroupingRequest, Plan

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FedCollabOptions:
    """Options of grouping `fedcollab`."""

    c: float = setting(10.0, "cost of having few samples", least=0)
    restarts: int = setting(100, "starts of the solver", least=1)
    ignore: str = setting(
        "none",
        "quantities: all clients count as of mean size; distances: all pairs count as of mean distance",
        choices=("none", "quantities", "distances"),
    )


def fedcollab(request: GroupingRequest, options: FedCollabOptions) -> Plan:
    """The groups with the smallest sum of error bounds.

    Matrix `distances` (N, N) goes from 0 (equal data) to 1 (data that can be told apart); NaN, which is unknown,
    counts as 1. If it is unknown because a member of a group is away, the mean distance to the others of that group
    counts. A client without samples is alone. The groups of the round before stay; clients that are in none of them
    join a group or stay alone, one client after the other. The plan says what the next best groups would cost, and
    warns where that is within the errors of the distances: matrix `distance_errors` (N, N), NaN or absent if unknown.
    Raises ConfigError if there is no usable matrix and one is needed.
    """
    sure: Margin | None = None
    settled = {client for group in request.settled for client in group}
    groups = request.settled_rows
    newcomers = np.array([client not in settled for client in request.clients])
    known = request.sizes > 0
    groups += [[row] for row in np.flatnonzero(newcomers & ~known).tolist()]
    if (newcomers & known).any():
        rows = np.flatnonzero(known)
        distances, sizes = _distances(request)[np.ix_(rows, rows)], request.sizes[rows].astype(np.float64)
        if options.ignore == "quantities":
            sizes = np.full(len(rows), sizes.mean())
        elif options.ignore == "distances":
            distances = np.full_like(distances, _mean(distances))
        if settled:
            _join(groups, request, distances, sizes, options.c)
        else:
            solution = solve(distances, sizes, options.c, options.restarts, seeds.stream(request.seed, "fedcollab"))
            errors = (
                _errors(request)[np.ix_(rows, rows)] if options.ignore != "distances" else np.zeros_like(distances)
            )
            sure = margin(solution, distances, errors, sizes, options.c, [request.clients[row] for row in rows])
            groups += [rows[group].tolist() for group in solution.groups]
    plan = Plan.from_rows(sorted(groups, key=min), request)
    if sure is None:
        return plan
    return replace(plan, note=str(sure), warning=f"these coalitions are not sure: {sure}" if sure.doubtful else "")


def _join(groups: list[list[int]], request: GroupingRequest, distances: Floats, sizes: Floats, weight: float) -> None:
    """Puts clients without a group into groups, in ascending order; arrays have a row for each client with samples."""
    place_of = {int(row): index for index, row in enumerate(np.flatnonzero(request.sizes > 0))}
    grouped = {row for group in groups for row in group}
    for row in sorted(place_of.keys() - grouped, key=lambda row: request.clients[row]):
        counted = [[place_of[member] for member in group if member in place_of] for group in groups]
        open_to_it = [index for index, members in enumerate(counted) if members]
        chosen = place(distances, sizes, weight, [counted[index] for index in open_to_it], place_of[row])
        if chosen is None:
            groups.append([row])
        else:
            groups[open_to_it[chosen]].append(row)


def _distances(request: GroupingRequest) -> Floats:
    distances = square(request, "fedcollab", "distances", "how far apart the clients' data are")
    if (np.abs(distances) > UNKNOWN).any():
        raise ConfigError(
            "grouping fedcollab: matrix distances has entries beyond -1..1",
            "give numbers from 0 to 1, and NaN for a pair that is not known",
        )
    found = np.array(distances, np.float64)
    for group in request.settled_rows:
        _fill(found, group, np.array([request.clients[row] in request.away for row in group]))
    return np.where(np.isnan(found), UNKNOWN, found)


def _fill(distances: Floats, group: list[int], away: NDArray[np.bool_]) -> None:
    """Gives clients the mean distance to the present members of a group for their unknown distances to absent ones."""
    here, absent = np.array(group)[~away], np.array(group)[away]
    for row in np.flatnonzero(np.isnan(distances[:, absent]).any(axis=1)):
        known = distances[row, here][~np.isnan(distances[row, here])]
        unknown = absent[np.isnan(distances[row, absent])]
        if known.size:
            distances[row, unknown] = distances[unknown, row] = known.mean()


def _errors(request: GroupingRequest) -> Floats:
    if "distance_errors" not in request.matrices:
        return np.full((len(request.clients), len(request.clients)), np.nan)
    errors = square(request, "fedcollab", "distance_errors", "how sure these distances are")
    if (errors < 0).any():
        raise ConfigError(
            "grouping fedcollab: matrix distance_errors has negative entries",
            "give standard errors, and NaN for unknown",
        )
    return errors.astype(np.float64)


def _mean(distances: Floats) -> float:
    """The mean distance of all pairs of different clients; values below 0 count as 0."""
    pairs = distances[~np.eye(len(distances), dtype=np.bool_)]
    return float(np.maximum(pairs, 0).mean()) if len(pairs) else 0.0
