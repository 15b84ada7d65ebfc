"""Groups still more alike than ICG's: members of a cluster are dealt where they suit best, not at random.

Groups keep exactly one member of each cluster. With S_m the sum of the class counts in group m, the sum z of
||S_a - S_b||^2 over all pairs of groups (FedGSP, eq. 4) is M * sum ||S_m||^2 less a constant. With all clusters but
one dealt, with sums T_m, the best deal of that one minimises the sum of T_m . V_k(m): a linear assignment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Deals of a cluster in all, so that refining takes no longer than the clustering; each has `_FEWEST` at least.
_DEALS, _FEWEST = 84, 4
#: Deals of each cluster from which on the first ones are shaken, and those at the end that are not.
_SHAKEN, _STILL = 10, 3
#: How hard: standard deviation of the noise, as a share of that of the inner product of two of the cluster.
_HEAT = 0.3
#: Groups in one linear assignment, whose time grows with the cube of it.
_MOST_GROUPS = 256


def difference(sums: Ints) -> int:
    """z of eq. 4: squared distances of the groups' class counts (M, F), added up over all pairs of groups."""
    return len(sums) * int((sums**2).sum()) - int((sums.sum(axis=0) ** 2).sum())


def dealt(clusters: Ints, histograms: Ints, sums: Ints, rng: np.random.Generator) -> Ints:
    """Members of each cluster, a row of `clusters` (L, M), in the order of the groups they go to, so that z is low.

    `histograms` are those of all clients, by client number; `sums` (M, F) is what the groups hold already.
    """
    members = clusters.copy()
    # M times the difference from the mean: what all have in common only slows the assignment down, and doubles are
    # exact for integers up to 2**53, so that every machine chooses alike.
    counts, totals = _centred(histograms[clusters]), _centred(sums)
    # Clusters of unlike members first: those of like members can level out what is left.
    order = np.argsort(-(counts**2).sum(axis=(1, 2)), kind="stable")
    spreads = [float(np.linalg.norm(own.T @ own)) / len(own) for own in counts]
    rounds = max(_FEWEST, _DEALS // len(clusters))
    for turn in range(rounds + 1):
        # As in annealing: deals that are a little wrong at first lead out of where every single deal is the best.
        heat = _HEAT * max(0.0, 1 - turn / (rounds - _STILL)) if turn and rounds >= _SHAKEN else 0.0
        changed = False
        for cluster in order:
            own = counts[cluster]
            if turn:
                totals -= own
            places = _places(own, totals, heat * spreads[cluster], rng)
            changed = changed or not np.array_equal(places, np.arange(len(places)))
            members[cluster], counts[cluster] = members[cluster, places], own[places]
            totals += counts[cluster]
        if turn and not changed and not heat:
            break
    return members


def _centred(counts: Ints) -> Floats:
    """M times the counts (..., M, F) less their sum over M."""
    centred: Floats = (counts.shape[-2] * counts - counts.sum(axis=-2, keepdims=True)).astype(np.float64)
    return centred


def _places(own: Floats, totals: Floats, heat: float, rng: np.random.Generator) -> Ints:
    """For each group the number of the row of `own` (M, F) that goes to it."""
    groups = len(own)
    if groups <= _MOST_GROUPS:
        return _best(own, totals, heat, rng)
    places = np.arange(groups)
    for part in np.array_split(rng.permutation(groups), -(-groups // _MOST_GROUPS)):
        places[part] = part[_best(own[part], totals[part], heat, rng)]
    return places


def _best(own: Floats, totals: Floats, heat: float, rng: np.random.Generator) -> Ints:
    costs: Floats = totals @ own.T
    if heat:
        costs += heat * rng.standard_normal(costs.shape)
    best: Ints = linear_sum_assignment(costs)[1]
    return best
