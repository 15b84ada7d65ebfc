"""The groupings of HCCT: its own, and MaxFL as its published code implements it.

HCCT groups clients if they gain more by one another's samples than they lose by different data. The weights of MaxFL
as its own paper defines it are in `top_server/merging/weighing.py`.
"""

from dataclasses import dataclass

import numpy as np

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from fedgsp.settings.per_client import PerClient
from top_server.grouping.greedy_merging import partition, place
from top_server.grouping.pairwise import products
from top_server.grouping.request import GroupingRequest, Plan

#: Groups of the first round, in which no update is known: every client alone (paper) or all together (authors' code).
FIRST_EPOCHS = ("singletons", "all")
_MAXFL_EVIDENCE = ("train_loss", "prior_distance")


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
        return _ungrouped(request, options.first_epoch)

    gram, reported = products(request, "hcct", "updates")
    known = reported & (request.sizes > 0)
    newcomers = [row for row in map(request.clients.index, sorted(request.newcomers)) if known[row]]
    settled = known.copy()
    settled[newcomers] = False
    rows = np.flatnonzero(settled)
    among_settled = gram if settled.all() else gram[np.ix_(rows, rows)]
    groups: list[list[int]] = [
        rows[members].tolist()
        for members in partition(among_settled, request.sizes[rows], alphas[rows], options.groups)
    ]
    for newcomer in newcomers:
        index = place(gram, request.sizes, alphas, groups, newcomer)
        if index is None:
            groups.append([newcomer])
        else:
            groups[index].append(newcomer)
    groups += [[row] for row in np.flatnonzero(~known).tolist()]
    return Plan.from_rows(sorted(groups, key=min), request)


@dataclass(frozen=True, slots=True)
class MaxflHcctOptions:
    """Options of grouping `maxfl-hcct`."""

    first_epoch: str = setting(
        "singletons", "groups of the first round: everyone alone, or all together", choices=FIRST_EPOCHS
    )


def maxfl_hcct(request: GroupingRequest, options: MaxflHcctOptions) -> Plan:
    """One group of the clients with `train_loss` < `prior_distance`; every other client is alone.

    The condition compares a loss with a squared distance, which have different units. Both matrices are
    (N, 1). `train_loss` is the loss of the global model on the client's training data. `prior_distance` is
    ||w_prior - w_global||^2, where w_prior is the model that the client trained alone before the first round. A client
    with NaN in one of them is alone. Raises ConfigError if they are missing after the first round.
    """
    if request.round == 1:
        return _ungrouped(request, options.first_epoch)
    for name in _MAXFL_EVIDENCE:
        if name not in request.matrices or request.matrices[name].shape[1] != 1:
            raise ConfigError(
                f"grouping maxfl-hcct needs matrix {name} with one column",
                "let clients report it (scheme maxfl-hcct), or use grouping single",
            )
    loss, distance = (request.matrices[name][:, 0] for name in _MAXFL_EVIDENCE)
    taking_part = loss < distance
    groups = [np.flatnonzero(taking_part).tolist(), *([row] for row in np.flatnonzero(~taking_part).tolist())]
    return Plan.from_rows(sorted(filter(None, groups), key=min), request)


def _ungrouped(request: GroupingRequest, first_epoch: str) -> Plan:
    groups = (request.clients,) if first_epoch == "all" else tuple((client,) for client in request.clients)
    return Plan(groups, idle=())
