"""FedCollab: coalitions chosen before training from how far apart clients' data are, and frozen from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgsp import seeds
from fedgsp.discriminators import UNKNOWN
from fedgsp.errors import ConfigError
from top_server.grouping.coalitions import place, solve
from top_server.grouping.options import Options
from top_server.grouping.pairwise import square
from top_server.grouping.request import GroupingRequest, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

Floats = NDArray[np.float64]


class FedCollabOptions(NamedTuple):
    """What `fedcollab` may be told."""

    c: float
    restarts: int
    ignore: str

    @classmethod
    def read(cls, given: Mapping[str, str]) -> FedCollabOptions:
        """What was; ConfigError for what cannot be."""
        options = Options("fedcollab", given, cls._fields)
        return cls(
            options.number("c", 10.0),
            options.integer("restarts", 100),
            options.choice("ignore", ("none", "quantities", "distances")),
        )


def fedcollab(request: GroupingRequest) -> Plan:
    """Groups of smallest summed error bound, from matrix `distances` (N, N): 0 alike to 1 apart, NaN not known, so 1.

    Options: `c` (10), what having few samples costs; `restarts` (100) of the solver; `ignore`, one of none, quantities
    (all clients count as of mean size), distances (all pairs count as of mean distance). A client without samples is
    alone. With groups of the round before these stay, and clients in none of them join one, or nobody, one by one.
    ConfigError without a usable matrix where one is needed.
    """
    weight, restarts, ignore = FedCollabOptions.read(request.options)

    settled = {client for group in request.settled for client in group}
    groups = request.settled_rows
    newcomers = np.array([client not in settled for client in request.clients])
    known = request.sizes > 0
    groups += [[row] for row in np.flatnonzero(newcomers & ~known).tolist()]
    if (newcomers & known).any():
        rows = np.flatnonzero(known)
        distances, sizes = _distances(request)[np.ix_(rows, rows)], request.sizes[rows].astype(np.float64)
        if ignore == "quantities":
            sizes = np.full(len(rows), sizes.mean())
        elif ignore == "distances":
            distances = np.full_like(distances, _mean(distances))
        if settled:
            _join(groups, request, distances, sizes, weight)
        else:
            rng = seeds.stream(request.seed, "fedcollab")
            groups += [rows[group].tolist() for group in solve(distances, sizes, weight, restarts, rng)]
    return Plan.from_rows(sorted(groups, key=min), request)


def _join(groups: list[list[int]], request: GroupingRequest, distances: Floats, sizes: Floats, weight: float) -> None:
    """Puts clients that have samples but no group into one, ascending; arrays have a row per client with samples."""
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
    if np.isinf(distances).any():
        raise ConfigError(
            "grouping fedcollab: matrix distances has infinite entries",
            "give numbers from 0 to 1, and NaN for a pair that is not known",
        )
    known: Floats = np.where(np.isnan(distances), UNKNOWN, distances).astype(np.float64)
    return known


def _mean(distances: Floats) -> float:
    """Over pairs of two clients, values below 0 counting as 0."""
    pairs = distances[~np.eye(len(distances), dtype=np.bool_)]
    return float(np.maximum(pairs, 0).mean()) if len(pairs) else 0.0
