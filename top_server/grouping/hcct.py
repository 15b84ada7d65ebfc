"""HCCT: groups of clients that gain by each other's samples more than they lose by each other's difference."""

from __future__ import annotations

import numpy as np

from top_server.grouping.greedy_merging import partition, place
from top_server.grouping.options import Options
from top_server.grouping.pairwise import products
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

    gram, reported = products(request, "hcct", "updates")
    known = reported & (request.sizes > 0)
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
