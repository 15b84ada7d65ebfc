"""HCCT's partition as its paper prints it, from whole update vectors: every pair of groups, after every merge.

O(N^3) in the number of clients. Oracle of the tests, and what the benchmark compares with.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SHORTEST = 1e-12


def utilities(updates: Floats, sizes: Floats, alphas: Floats, group: Sequence[int], beta: float = 0.0) -> Floats:
    """U_i = -alpha_i / Dhat + cos(g_i, ghat) + beta of each member."""
    rows = list(group)
    total = sizes[rows].sum()
    mean = (sizes[rows] / total) @ updates[rows]
    lengths = np.linalg.norm(updates[rows], axis=1) * np.linalg.norm(mean)
    short = (np.linalg.norm(updates[rows], axis=1) < SHORTEST) | (np.linalg.norm(mean) < SHORTEST)
    cosines = np.where(short, 0.0, updates[rows] @ mean / np.where(short, 1.0, lengths))
    return -alphas[rows] / total + cosines + beta


def total_utility(
    updates: Floats, sizes: Floats, alphas: Floats, groups: Sequence[Sequence[int]], beta: float = 0.0
) -> float:
    """The utilities of all members of all groups, summed."""
    return float(sum(utilities(updates, sizes, alphas, group, beta).sum() for group in groups))


def benefit(
    updates: Floats, sizes: Floats, alphas: Floats, a: Sequence[int], b: Sequence[int], beta: float = 0.0
) -> float:
    """What the utility grows by when groups `a` and `b` become one."""
    together = total_utility(updates, sizes, alphas, [[*a, *b]], beta)
    return together - total_utility(updates, sizes, alphas, [a, b], beta)


def benefits(
    updates: Floats, sizes: Floats, alphas: Floats, groups: Sequence[Sequence[int]], beta: float = 0.0
) -> dict[tuple[int, int], float]:
    """The benefit of each pair of groups, by their numbers."""
    pairs = itertools.combinations(range(len(groups)), 2)
    return {(a, b): benefit(updates, sizes, alphas, groups[a], groups[b], beta) for a, b in pairs}


def partition(
    updates: Floats,
    sizes: Floats,
    alphas: Floats,
    groups: int | None = None,
    beta: float = 0.0,
    merge_before_stopping: bool = False,
) -> list[list[int]]:
    """The groups, ordered by their smallest members; `merge_before_stopping` is the printed slip of algorithm 2."""
    found = [[client] for client in range(len(updates))]
    known: dict[tuple[int, int], float] = {}  # benefit by the smallest members of two groups
    while len(found) > (groups or 1):
        for a, b in itertools.combinations(found, 2):
            if (a[0], b[0]) not in known:
                known[a[0], b[0]] = benefit(updates, sizes, alphas, a, b, beta)
        first, second = min(known, key=lambda pair: (-known[pair], pair))
        stop = groups is None and known[first, second] <= 0
        if stop and not merge_before_stopping:
            break
        into = next(group for group in found if group[0] == first)
        gone = next(group for group in found if group[0] == second)
        found.remove(gone)
        into[:] = sorted([*into, *gone])
        known = {pair: value for pair, value in known.items() if not {first, second} & set(pair)}
        if stop:
            break
    return found


def best_partition(updates: Floats, sizes: Floats, alphas: Floats) -> tuple[float, list[list[int]]]:
    """The largest utility of all partitions there are, and one that has it; for a handful of clients."""
    partitions = _partitions(list(range(len(updates))))
    return max((total_utility(updates, sizes, alphas, groups), groups) for groups in partitions)


def _partitions(clients: list[int]) -> Iterator[list[list[int]]]:
    if not clients:
        yield []
        return
    first, rest = clients[0], clients[1:]
    for groups in _partitions(rest):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]
