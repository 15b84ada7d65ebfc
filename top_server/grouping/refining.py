"""Makes ICG's groups more similar: the members of a cluster are dealt to the groups that they fit best, not at random.

Every group keeps exactly one member of each cluster. Let S_m be the sum of the class counts in group m. The sum z of
||S_a - S_b||^2 over all pairs of groups (FedGSP, eq. 4) is M * sum ||S_m||^2 minus a constant. If all clusters but one
are dealt, with sums T_m, the best deal of this cluster minimises the sum of T_m . V_k(m): a linear assignment.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from top_server.grouping.request import Floats, Ints

#: Number of deals over all clusters, so that refining takes no longer than the clustering; at least `_FEWEST` each.
_DEALS, _FEWEST = 84, 4
#: Noise is added if each cluster is dealt at least `_SHAKEN` times; the first and the last ones (`_STILL`) have none.
_SHAKEN, _STILL = 10, 3
#: Standard deviation of the noise at first, as a share of that of the inner product of two members of the cluster.
_HEAT = 0.3
#: Most groups in one linear assignment; its time grows with the cube of their number.
_MOST_GROUPS = 256


def difference(sums: Ints) -> int:
    """z of eq. 4: the sum of ||S_a - S_b||^2 over all pairs of groups, from the groups' class counts `sums` (M, F)."""
    return len(sums) * int((sums**2).sum()) - int((sums.sum(axis=0) ** 2).sum())


def dealt(clusters: Ints, histograms: Ints, sums: Ints, rng: np.random.Generator) -> Ints:
    """The members of each cluster in the order of the groups that they are dealt to, shape (L, M), so that z is small.

    `clusters` (L, M) has the client numbers of a cluster in each row. `histograms` has a row for every client number.
    `sums` (M, F) are the class counts of clients that are already in the groups.
    """
    members = clusters.copy()
    # M times the difference from the mean. A part that all have in common only slows the assignment down. Float64 is
    # exact for integers up to 2**53, so that every machine makes the same choices.
    counts, totals = _centred(histograms[clusters]), _centred(sums)
    # Clusters with different members are dealt first. Clusters with similar members can even out what is left.
    order = np.argsort(-(counts**2).sum(axis=(1, 2)), kind="stable")
    spreads = [float(np.linalg.norm(own.T @ own)) / len(own) for own in counts]
    rounds = max(_FEWEST, _DEALS // len(clusters))
    for turn in range(rounds + 1):
        # As in simulated annealing: deals with noise lead out of a local minimum, in which every single deal is the
        # best.
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
    """M times the `counts` (..., M, F), minus their sum over M."""
    return np.asarray(counts.shape[-2] * counts - counts.sum(axis=-2, keepdims=True), np.float64)


def _places(own: Floats, totals: Floats, heat: float, rng: np.random.Generator) -> Ints:
    """For each group, the number of the row of `own` (M, F) that is dealt to it."""
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
    return np.asarray(linear_sum_assignment(costs)[1], np.int64)
