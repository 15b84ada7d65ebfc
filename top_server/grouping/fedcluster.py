"""FedCluster (also called CFL): a cluster is split in two if it has converged and its members still disagree.

Sattler, Müller and Samek: Clustered Federated Learning, 2019.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedgsp.settings.fields import setting
from top_server.grouping.pairwise import Matrix, products, reciprocals
from top_server.grouping.request import Flags, Floats, GroupingRequest, Plan

_FEWEST_TO_SPLIT = 3


@dataclass(frozen=True, slots=True)
class FedClusterOptions:
    """Options of grouping `fedcluster`."""

    eps1: float = setting(0.4, "a group splits only if its mean update is shorter than this", least=0)
    eps2: float = setting(1.6, "a group splits only if its longest update is longer than this", least=0)
    min_round: int = setting(20, "groups split only after this round", least=0)
    gamma_max: float = setting(
        0.0, "the halves of a group must be further apart than this; 0: no such condition", least=0
    )
    linkage: str = setting(
        "complete",
        "how halves are found: complete, as in the authors' demonstration, or single, as in their Algorithm 1",
        choices=("complete", "single"),
    )


def fedcluster(request: GroupingRequest, options: FedClusterOptions) -> Plan:
    """The groups of the round before; a group is split into two halves if the conditions below hold.

    Matrix `gram` has the inner products of the clients' updates g = (w_start - w_after) / lr in that round. The
    lengths below are those of the differences w_start - w_after.

    A group of 3 or more clients is split in rounds after `min_round` if the mean of its differences is shorter than
    `eps1`, the longest of them is longer than `eps2`, and its halves are further apart than `gamma_max` (0 drops this
    condition). Clients without an update (a row of NaN), and newcomers, whose updates are not of that round and that
    group, are left out of these conditions and join the larger half. Clients without a group join the largest group.
    Raises ConfigError if there is no usable matrix after `min_round`.
    """
    groups = request.settled_rows or [[]]
    grouped = {row for group in groups for row in group}
    max(groups, key=len).extend(row for row in range(len(request.clients)) if row not in grouped)
    if request.round - 1 > options.min_round:
        gram, known = products(request, "fedcluster", "updates")
        known &= ~np.isin(request.clients, request.newcomers)
        groups = [half for group in groups for half in _halves(group, gram, known, options, request.learning_rate)]
    return Plan.from_rows(sorted(groups, key=min), request)


def norms(gram: Floats) -> tuple[float, float]:
    """The length of the plain mean of a group's updates, and the largest length of one; `gram` (n, n) of the group."""
    return math.sqrt(max(float(gram.mean()), 0.0)), math.sqrt(float(np.diagonal(gram).max()))


def split(gram: Floats, method: str = "complete") -> tuple[Flags, float]:
    """Two halves by linkage on the distance 1 - cosine, and the largest cosine between the halves.

    Clusters are merged until two are left, always those with the largest similarity. The similarity of two clusters is
    the smallest cosine of two members (`method` complete) or the largest one (single). Single linkage gives the halves
    with the smallest largest cosine between them, which is what Algorithm 1 of the paper computes.

    `gram` is (n, n) with n at least 2. The halves are an array (n,) of bools: True for the half with row 0.
    """
    # Imported here because the import takes half a second, which only this grouping needs.
    from scipy.cluster.hierarchy import cut_tree, linkage

    scale = reciprocals(np.sqrt(np.diagonal(gram)))
    cosines = gram * np.outer(scale, scale)
    # The last merge is undone. A cut at a height would not give two clusters if the last merges have equal heights.
    label = cut_tree(linkage(1 - cosines[np.triu_indices(len(gram), 1)], method), n_clusters=2)[:, 0]
    first: Flags = label == label[0]
    return first, float(cosines[np.ix_(first, ~first)].max())


def _halves(group: list[int], gram: Matrix, known: Flags, options: FedClusterOptions, rate: float) -> list[list[int]]:
    """The two halves of a group that is split; else the group itself."""
    rows = np.array([row for row in group if known[row]])
    if len(rows) < _FEWEST_TO_SPLIT:
        return [group]
    among = gram[np.ix_(rows, rows)].astype(np.float64)
    mean, longest = norms(among)
    if not (mean < options.eps1 / rate and longest > options.eps2 / rate):
        return [group]
    first, across = split(among, options.linkage)
    if options.gamma_max and not math.sqrt(max(1 - across, 0.0) / 2) > options.gamma_max:
        return [group]
    halves: list[list[int]] = [rows[first].tolist(), rows[~first].tolist()]
    max(halves, key=len).extend(row for row in group if not known[row])
    return halves
