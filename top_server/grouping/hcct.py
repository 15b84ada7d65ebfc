"""HCCT: groups of clients that gain by each other's samples more than they lose by each other's difference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping.greedy_merging import partition, place
from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan

#: The first round, of which no update is known yet: everybody alone (the paper) or all together (its release).
FIRST_EPOCHS = ("singletons", "all")


def hcct(request: GroupingRequest) -> Plan:
    """Groups of greatest utility by greedy merging, from matrix `gram`: the inner products <g_i, g_j> of all updates.

    Options: `alpha` (1), the weight of having few samples, for one client `alpha.ID`; `groups`, a forced number;
    `first_epoch`. A client without samples or without an update (a row of NaN) is alone and counts for no forced
    number; newcomers join the others' groups one by one. ConfigError without a usable matrix after the first round.
    """
    options = Options("hcct", request.options, ("alpha", "alpha.ID", "groups", "first_epoch"))
    alphas = options.number_per_client("alpha", request.clients, 1.0)
    forced = options.integer("groups", 0) or None
    ungrouped = first_epoch(request, options)
    if request.round == 1 and "gram" not in request.matrices:
        return ungrouped

    gram = _gram(request)
    known = np.isfinite(np.diagonal(gram)) & (request.sizes > 0)
    _check(gram, np.flatnonzero(known))
    newcomers = [request.clients.index(client) for client in sorted(request.newcomers)]
    settled = known.copy()
    settled[newcomers] = False
    rows = np.flatnonzero(settled)
    among_settled = gram if settled.all() else gram[np.ix_(rows, rows)]
    found = partition(among_settled, request.sizes[rows], alphas[rows], forced)
    groups: list[list[int]] = [rows[members].tolist() for members in found]
    for newcomer in newcomers:
        if known[newcomer]:
            index = place(gram, request.sizes, alphas, groups, newcomer)
            if index is None:
                groups.append([newcomer])
            else:
                groups[index].append(newcomer)
    groups += [[row] for row in np.flatnonzero(~known).tolist()]
    return Plan.from_rows(sorted(groups, key=min), request)


def first_epoch(request: GroupingRequest, options: Options) -> Plan:
    """Who trains with whom while nothing is known of anybody: option `first_epoch`, one of FIRST_EPOCHS."""
    together = options.choice("first_epoch", FIRST_EPOCHS) == "all"
    groups = (request.clients,) if together else tuple((client,) for client in request.clients)
    return Plan(groups, idle=())


def _gram(request: GroupingRequest) -> NDArray[np.floating]:
    if "gram" not in request.matrices:
        raise ConfigError(
            "grouping hcct needs the inner products of the clients' updates (matrix gram)",
            "let clients report their updates (scheme hcct), or use grouping random",
        )
    gram = request.matrices["gram"]
    if gram.shape != (len(request.clients), len(request.clients)):
        raise ConfigError(
            f"grouping hcct: matrix gram has shape {gram.shape} for {len(request.clients)} clients",
            "give it a row and a column per client",
        )
    return gram if gram.dtype.kind == "f" else gram.astype(np.float64)


def _check(gram: NDArray[np.floating], known: NDArray[np.intp]) -> None:
    """Raise ConfigError unless the products of clients with an update are finite, and their squares not negative."""
    # A row at a time: no second matrix.
    if not all(np.isfinite(gram[row, known]).all() for row in known) or (gram[known, known] < 0).any():
        raise ConfigError(
            "grouping hcct: matrix gram has entries that are no inner products of updates",
            "give finite numbers, and NaN only in the whole row and column of a client without an update",
        )
