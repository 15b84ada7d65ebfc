"""HCCT: clients are grouped if they gain more by one another's samples than they lose by different data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsp.settings.fields import setting
from fedgsp.settings.per_client import PerClient
from top_server.grouping.greedy_merging import partition, place
from top_server.grouping.pairwise import products
from top_server.grouping.request import GroupingRequest, Plan

#: Groups of the first round, in which no update is known: every client alone (paper) or all together (authors' code).
FIRST_EPOCHS = ("singletons", "all")


@dataclass(frozen=True, slots=True)
class HcctOptions:
    """Options of grouping `hcct`."""

    alpha: PerClient = setting(
        PerClient(1.0), "how much a client prefers more data to similar data; alpha.ID is for one client", least=0
    )
    groups: int | None = setting(None, "a forced number of groups", least=1)
    first_epoch: str = setting(
        "singletons", "groups of the first round: everyone alone, or all together", choices=FIRST_EPOCHS
    )


def hcct(request: GroupingRequest, options: HcctOptions) -> Plan:
    """Groups with a large sum of utilities, by greedy merging, from matrix `gram` of all updates: <g_i, g_j>.

    A client without samples or without an update (a row of NaN) is alone, and is not counted in option `groups`.
    Newcomers join the groups of the other clients one by one, or stay alone. Raises ConfigError if there is no usable
    matrix after the first round.
    """
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
    """The groups while no update is known: all clients in one group, or every client alone (see FIRST_EPOCHS)."""
    groups = (request.clients,) if first_epoch == "all" else tuple((client,) for client in request.clients)
    return Plan(groups, idle=())
