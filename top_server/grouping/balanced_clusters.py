"""K-means into clusters of equal size. Each assignment step is a minimum-cost flow (FedGSP, ICG).

Because all clusters have the same size, the flow is exact in integers. The cost of client k in cluster l is
0.5 * ||V_k - C_l||^2 = 0.5 * ||V_k||^2 - V_k . C_l + 0.5 * ||C_l||^2. The first and the last term add the same amount
to every assignment, so they are left out. The middle term, times the cluster size, is the integer -(V_k . S_l), where
S_l is the sum of the members of l. With more than `MOST_EXACT_ARCS` arcs, `priced_clusters` makes the step instead.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from ortools.graph.python import min_cost_flow
from threadpoolctl import threadpool_limits

from fedgsp.errors import ConfigError
from top_server.grouping.priced_clusters import nearest_priced
from top_server.grouping.request import Ints

#: Largest number of clients times clusters for which each step is exact; a step then takes up to about 25 ms.
MOST_EXACT_ARCS = 100_000
#: The solver multiplies costs by the number of nodes and adds several of the products, in 64 bits.
_LARGEST_SCALED_COST = 2**60
_LARGEST_EXACT_DOUBLE = 2**53


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """`labels` (N,) in 0 .. L-1, and the objective sum_k 0.5 * ||V_k - C_l(k)||^2 after each assignment step."""

    labels: Ints
    objectives: tuple[float, ...]


def balanced_clusters(rows: Ints, starts: Ints, iterations: int, exact: bool | None = None) -> Clusters:
    """Divides the integer count vectors `rows` (N, F) into L clusters of N / L rows each.

    The first centroids are the rows numbered `starts` (L,). The iteration stops when an assignment repeats, or after
    `iterations` steps. With `exact`, each step is a minimum-cost flow; without, it uses prices, and its objective is
    seldom more than 0.1 % above the least one. By default N * L decides, and whether the costs of exact steps fit into
    64 bits; with `exact`, ConfigError is raised if they do not.
    """
    size, rest = divmod(len(rows), len(starts))
    if rest:
        raise ValueError(f"{len(rows)} rows do not make {len(starts)} clusters of one size")
    if exact is None:
        exact = len(rows) * len(starts) <= MOST_EXACT_ARCS and _fit(rows, rows * size)
    # The steps by prices use threads of their own: threads of BLAS inside them would only wait for one another.
    with nullcontext() if exact else threadpool_limits(1):
        sums, summed = rows[starts], 1
        premiums = np.zeros(len(starts))
        labels = np.full(len(rows), -1, dtype=np.int64)
        objectives: list[float] = []
        for _ in range(iterations):
            previous = labels
            if exact:
                labels = nearest_balanced(rows, sums, size)
            else:
                assignment = nearest_priced(rows, sums, size, summed, premiums)
                # First centroids are single clients, and later ones are means: the prices of the former do not fit the
                # latter.
                labels, premiums = assignment.labels, assignment.premiums if summed == size else premiums
            objectives.append(0.5 * float(((rows - (sums / summed)[labels]) ** 2).sum()))
            if np.array_equal(labels, previous):
                break
            sums = rows[np.argsort(labels, kind="stable")].reshape(len(starts), size, -1).sum(axis=1)
            summed = size
        return Clusters(labels, tuple(objectives))


def nearest_balanced(rows: Ints, sums: Ints, size: int) -> Ints:
    """Labels (N,) that maximise the sum of V_k . S_l(k), with exactly `size` rows per cluster; `sums` is (L, F)."""
    clients, clusters = len(rows), len(sums)
    if clusters == 1:
        return np.zeros(clients, dtype=np.int64)
    costs = _costs(rows, sums)
    # Arc k * L + l goes from client k to cluster l, which is node N + l.
    tails = np.repeat(np.arange(clients, dtype=np.int32), clusters)
    heads = np.tile(np.arange(clients, clients + clusters, dtype=np.int32), clients)
    flow = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(tails, heads, np.ones_like(costs).ravel(), costs.ravel())
    supplies = np.concatenate([np.ones(clients, np.int64), np.full(clusters, -size, np.int64)])
    flow.set_nodes_supplies(np.arange(clients + clusters, dtype=np.int32), supplies)
    status = flow.solve()
    if status != flow.OPTIMAL:
        raise RuntimeError(f"the flow solver ended with {status}, not OPTIMAL")
    return np.asarray(flow.flows(arcs).reshape(clients, clusters).argmax(axis=1), np.int64)


def _costs(rows: Ints, sums: Ints) -> Ints:
    """The costs -(V_k . S_l), plus a constant for each client so that its cheapest cluster costs 0; shape (N, L)."""
    if not _fit(rows, sums):
        raise ConfigError(
            "class counts are too large for exact balanced clusters in 64 bits",
            "group by proportions instead: option normalise=true",
        )
    # A product of float64 is exact below 2**53, and much faster than one of integers, for which numpy has no BLAS.
    kind = np.float64 if _largest(rows, sums) <= _LARGEST_EXACT_DOUBLE else np.int64
    dots = (rows.astype(kind) @ sums.T.astype(kind)).astype(np.int64)
    return np.asarray(dots.max(axis=1, keepdims=True) - dots, np.int64)


def _largest(rows: Ints, sums: Ints) -> int:
    """A bound of every V_k . S_l."""
    return int(rows.sum(axis=1).max()) * int(sums.max())


def _fit(rows: Ints, sums: Ints) -> bool:
    """Whether the solver can take the costs."""
    return _largest(rows, sums) * (len(rows) + len(sums) + 1) <= _LARGEST_SCALED_COST
