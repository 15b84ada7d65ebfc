"""HCCT: groups of clients that gain by each other's samples more than they lose by each other's difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from top_server.grouping.greedy_merging import partition, place
from top_server.grouping.options import Options, PerClient
from top_server.grouping.pairwise import products
from top_server.grouping.request import GroupingRequest, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The first round, of which no update is known yet: everybody alone (the paper) or all together (its release).
FIRST_EPOCHS = ("singletons", "all")


class HcctOptions(NamedTuple):
    """What `hcct` may be told."""

    alpha: PerClient
    groups: int | None
    first_epoch: str

    @classmethod
    def read(cls, given: Mapping[str, str]) -> HcctOptions:
        """What was; ConfigError for what cannot be."""
        options = Options("hcct", given, ("alpha", "alpha.ID", "groups", "first_epoch"))
        return cls(
            options.number_per_client("alpha", 1.0),
            options.integer("groups", 0) or None,
            options.choice("first_epoch", FIRST_EPOCHS),
        )


def hcct(request: GroupingRequest) -> Plan:
    """Groups of greatest utility by greedy merging, from matrix `gram`: the inner products <g_i, g_j> of all updates.

    Options: `alpha` (1), the weight of having few samples, for one client `alpha.ID`; `groups`, a forced number;
    `first_epoch`. A client without samples or without an update (a row of NaN) is alone and counts for no forced
    number; newcomers join the others' groups one by one. ConfigError without a usable matrix after the first round.
    """
    options = HcctOptions.read(request.options)
    alphas = options.alpha.of(request.clients)
    if request.round == 1 and "gram" not in request.matrices:
        return ungrouped(request, options.first_epoch)

    gram, reported = products(request, "hcct", "updates")
    known = reported & (request.sizes > 0)
    newcomers = [request.clients.index(client) for client in sorted(request.newcomers)]
    settled = known.copy()
    settled[newcomers] = False
    rows = np.flatnonzero(settled)
    among_settled = gram if settled.all() else gram[np.ix_(rows, rows)]
    found = partition(among_settled, request.sizes[rows], alphas[rows], options.groups)
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


def ungrouped(request: GroupingRequest, first_epoch: str) -> Plan:
    """Who trains with whom while nothing is known of anybody: as one of FIRST_EPOCHS says."""
    groups = (request.clients,) if first_epoch == "all" else tuple((client,) for client in request.clients)
    return Plan(groups, idle=())
