"""Divides clients into coalitions so that the sum of their error bounds is small (FedCollab, Bao et al. 2023).

Coalition c has m_c samples, C is the weight and D_ij the distance of two clients. The objective is the sum over all
coalitions of

    |c| C / sqrt(m_c) + (1 / m_c) * sum over i, j in c of m_j D_ij

This equals the paper's sum over clients, because sum_j alpha_ij^2 / beta_j = 1 / beta_c. If client k moves, only two
coalitions change. For each of them the change follows from one number: the sum of P_kj = m_j D_kj + m_k D_jk over its
members j.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Number = float | NDArray[np.integer] | Floats

#: With at most so many clients, all partitions are compared (3^N / 2 steps). Descents usually find the best one too.
MOST_FOR_EXHAUSTIVE = 10
_MOST_PASSES = 100
#: A restart takes 8 N^2 bytes. So many numbers are kept at the same time (256 MiB); further restarts come later.
_MOST_NUMBERS = 2**25
#: A smaller improvement counts as none: a share of the objective of the start, in which every client is alone.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Solution:
    """A partition and the next best one, both as groups of row numbers: rows ascending, ordered by smallest rows."""

    groups: list[list[int]]
    #: The best of the other partitions in which restarts ended, and of those that differ by one move or one merge;
    #: None for a single client.
    next_best: list[list[int]] | None


def objective(
    distances: NDArray[np.floating], sizes: NDArray[np.number], weight: float, groups: Iterable[Sequence[int]]
) -> float:
    """The objective, summed over `groups` of row numbers. Every group must have at least one sample.

    In `distances` (N, N), the diagonal and values below 0 count as 0. `sizes` (N,) are numbers of samples.
    """
    total = 0.0
    for group in groups:
        rows = np.asarray(group)
        among, size = _clipped(distances[np.ix_(rows, rows)]), sizes[rows].astype(np.float64)
        total += float(_cost(len(rows), size.sum(), (among @ size).sum(), weight))
    return total


def solve(
    distances: NDArray[np.floating],
    sizes: NDArray[np.number],
    weight: float,
    restarts: int,
    rng: np.random.Generator,
) -> Solution:
    """The best partition found, and the next best. Arguments as in `descents`.

    With up to MOST_FOR_EXHAUSTIVE clients no partition is better than the best one.
    """

    def cost(groups: list[list[int]]) -> float:
        return objective(distances, sizes, weight, groups)

    if len(sizes) < 2:
        _checked(distances, sizes)
        return Solution([[row] for row in range(len(sizes))], None)
    found = [members(labels) for labels in descents(distances, sizes, weight, restarts, rng)]
    pulls, mass = _checked(distances, sizes)
    best = _best_of_all(pulls, mass, weight) if len(sizes) <= MOST_FOR_EXHAUSTIVE else min(found, key=cost)
    near = _Descents.at(best, pulls, mass, weight).neighbour()
    others = [groups for groups in (*found, near) if groups not in (best, None)]
    return Solution(best, min(others, key=cost, default=None))


def descents(
    distances: NDArray[np.floating],
    sizes: NDArray[np.number],
    weight: float,
    restarts: int,
    rng: np.random.Generator,
    merging: bool = True,
) -> Ints:
    """The partition in which each restart ends, shape (restarts, N): clients of one coalition have the same label.

    At first every client is alone. A pass goes through all clients in random order, and moves each to the coalition
    where the objective is smallest, which may be a new one. When no move improves the objective, the two coalitions
    whose merge improves it most are merged, and clients move again. With `merging=False` nothing is merged, as in the
    authors' algorithm. A restart ends when neither moves nor merges improve the objective.

    `distances` (N, N) as in `objective`, finite; `sizes` (N,) above 0. Raises ValueError otherwise.
    """
    pulls, size = _checked(distances, sizes)
    at_once = max(1, _MOST_NUMBERS // max(1, pulls.size))
    parts = [min(at_once, restarts - start) for start in range(0, restarts, at_once)]
    ends = []
    for part, stream in zip(parts, rng.spawn(len(parts)), strict=True):
        descent = _Descents(pulls, size, weight, part)
        descent.run(stream, merging)
        ends.append(descent.labels)
    return np.concatenate(ends)


def members(labels: Ints) -> list[list[int]]:
    """The rows that have the same label, as groups: rows ascending, groups ordered by their smallest rows."""
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(row)
    return list(groups.values())


def place(
    distances: NDArray[np.floating],
    sizes: NDArray[np.number],
    weight: float,
    groups: Sequence[Sequence[int]],
    newcomer: int,
) -> int | None:
    """The index of the group that the newcomer should join, for the smallest objective; None if it should be alone.

    The newcomer is a row number.
    """
    alone = objective(distances, sizes, weight, [[newcomer]])
    changes = [
        objective(distances, sizes, weight, [[*group, newcomer]]) - objective(distances, sizes, weight, [group])
        for group in groups
    ]
    if not changes or min(changes) >= alone * (1 - _ROUNDING):
        return None
    return int(np.argmin(changes))


class _Descents:
    """Several partitions that are improved at the same time; the first axis of every array is the partition.

    A partition has places, numbered from 0; a place holds a coalition or is empty, and the label of a client is the
    number of its place. For the coalition c of partition r, with members j: count[r, c] is their number, mass[r, c]
    the sum of m_j, inside[r, c] the sum of P over pairs of members, pull[r, k, c] the sum of P_kj for every client k,
    and cost[r, c] the coalition's part of the objective. All of them are exactly 0 for an empty place. During a pass,
    all coalitions of the partitions of that pass, and one empty place, are among the first `width` places.
    """

    def __init__(self, pulls: Floats, sizes: Floats, weight: float, restarts: int) -> None:
        shape = (restarts, len(sizes))
        self.pulls, self.sizes, self.weight = pulls, sizes, weight
        self.labels: Ints = np.tile(np.arange(len(sizes)), (restarts, 1))
        self.count: Floats = np.ones(shape)
        self.mass: Floats = np.tile(sizes, (restarts, 1))
        self.inside: Floats = np.zeros(shape)
        self.pull: Floats = np.tile(pulls, (restarts, 1, 1))
        self.cost = _cost(self.count, self.mass, self.inside, weight)
        self.width = len(sizes)
        # A running sum keeps the rounding errors of clients that have left; they matter if only a small client
        # remains.
        error = 8 * np.finfo(np.float64).eps * pulls.sum() / sizes.min(initial=np.inf)
        self.least = _ROUNDING * float(_cost(1, sizes, 0, weight).sum()) + float(error)

    @classmethod
    def at(cls, groups: list[list[int]], pulls: Floats, sizes: Floats, weight: float) -> _Descents:
        """A single partition, which is given."""
        found = cls(pulls, sizes, weight, 1)
        row = np.zeros(1, np.int64)
        for group in groups:
            for client in group[1:]:
                found._shift(row, np.array([client]), np.array([client]), -1)
                found._shift(row, np.array([client]), np.array([group[0]]), 1)
                found.labels[0, client] = group[0]
        return found

    def neighbour(self) -> list[list[int]] | None:
        """The best partition that a move of one client, or a merge, makes of a single partition; None if none can."""
        row, least, found = np.zeros(1, np.int64), np.inf, None
        for client in range(len(self.sizes)):
            adds = self._added(row, np.array([client]))[0]
            own = self.labels[0, client]
            change = adds - adds[own]
            change[own] = np.inf
            if self.count[0, own] == 1:
                change[self.count[0, : self.width] == 0] = np.inf  # the client would be alone again
            if change.min() < least:
                least, found = change.min(), self.labels[0].copy()
                found[client] = change.argmin()
        change, used, _, _ = self._merges(0)
        if change.min() < least:
            kept, gone = used[list(np.unravel_index(change.argmin(), change.shape))]
            found = np.where(self.labels[0] == gone, kept, self.labels[0])
        return None if found is None else members(found)

    def run(self, rng: np.random.Generator, merging: bool) -> None:
        rows = np.arange(len(self.labels))
        while len(rows):
            self._settle(rows, rng)
            rows = np.array([row for row in rows.tolist() if merging and self._merge(row)], np.int64)

    def _settle(self, rows: Ints, rng: np.random.Generator) -> None:
        """Repeats passes over all clients of the partitions `rows`, until a pass changes nothing."""
        for _ in range(_MOST_PASSES):
            self._narrow(rows)
            orders = rng.permuted(np.tile(np.arange(len(self.sizes)), (len(rows), 1)), axis=1)
            changed = np.zeros(len(rows), np.bool_)
            for clients in orders.T:
                changed |= self._move(rows, clients)
            rows = rows[changed]
            if not len(rows):
                break

    def _move(self, rows: Ints, clients: Ints) -> NDArray[np.bool_]:
        """Moves one client of each partition of `rows` to its best coalition; for each, whether the client moved."""
        each = np.arange(len(rows))
        own = self.labels[rows, clients]
        adds = self._added(rows, clients)
        best = adds.argmin(axis=1)
        moved: NDArray[np.bool_] = adds[each, best] < adds[each, own] - self.least
        if moved.any():
            self._shift(rows[moved], clients[moved], own[moved], -1)
            self._shift(rows[moved], clients[moved], best[moved], 1)
            self.labels[rows[moved], clients[moved]] = best[moved]
            self._widen(int(best[moved].max()))
        return moved

    def _added(self, rows: Ints, clients: Ints) -> Floats:
        """How much a client of each partition adds to the objective, in each coalition and in the empty place."""
        each = np.arange(len(rows))
        own = self.labels[rows, clients]
        size = self.sizes[clients]
        pull = self.pull[rows, clients, : self.width]
        count, mass, inside, cost = (
            numbers[rows, : self.width] for numbers in (self.count, self.mass, self.inside, self.cost)
        )
        adds = _cost(count + 1, mass + size[:, None], inside + pull, self.weight) - cost
        shared = count[each, own] > 1
        here = each[shared], own[shared]
        left = np.zeros(len(rows))
        left[shared] = _cost(count[here] - 1, mass[here] - size[shared], inside[here] - pull[here], self.weight)
        adds[each, own] = cost[each, own] - left
        return adds

    def _narrow(self, rows: Ints) -> None:
        """Sets `width` for the partitions `rows`; coalitions move to the first places if that halves the width."""
        self.width = 0
        if self.labels[rows].max() > 2 * np.count_nonzero(self.count[rows], axis=1).max():
            for row in rows:
                order = np.argsort(self.count[row] == 0, kind="stable")
                for numbers in (self.count, self.mass, self.inside, self.cost):
                    numbers[row] = numbers[row, order]
                self.pull[row] = self.pull[row][:, order]
                self.labels[row] = np.argsort(order)[self.labels[row]]
        self._widen(int(self.labels[rows].max()))

    def _widen(self, label: int) -> None:
        self.width = min(max(self.width, label + 2), len(self.sizes))

    def _shift(self, rows: Ints, clients: Ints, labels: Ints, sign: int) -> None:
        """Adds a client to a coalition in each partition of `rows` (`sign` = 1), or removes it (`sign` = -1)."""
        self.inside[rows, labels] += sign * self.pull[rows, clients, labels]
        self.count[rows, labels] += sign
        self.mass[rows, labels] += sign * self.sizes[clients]
        self.pull[rows, :, labels] += sign * self.pulls[clients]
        empty = self.count[rows, labels] == 0
        self._clear(rows[empty], labels[empty])
        rows, labels = rows[~empty], labels[~empty]
        self.cost[rows, labels] = _cost(
            self.count[rows, labels], self.mass[rows, labels], self.inside[rows, labels], self.weight
        )

    def _clear(self, rows: Ints | int, labels: Ints | int) -> None:
        for numbers in (self.count, self.mass, self.inside, self.cost):
            numbers[rows, labels] = 0
        self.pull[rows, :, labels] = 0

    def _merge(self, row: int) -> bool:
        """Merges the two coalitions for which this helps most; False if no merge improves the objective."""
        change, used, inside, merged = self._merges(row)
        first, second = np.unravel_index(change.argmin(), change.shape)
        if not change[first, second] < -self.least:
            return False
        kept, gone = int(used[first]), int(used[second])
        self.labels[row][self.labels[row] == gone] = kept
        self.count[row, kept] += self.count[row, gone]
        self.mass[row, kept] += self.mass[row, gone]
        self.inside[row, kept] = inside[first, second]
        self.pull[row, :, kept] += self.pull[row, :, gone]
        self.cost[row, kept] = merged[first, second]
        self._clear(row, gone)
        return True

    def _merges(self, row: int) -> tuple[Floats, Ints, Floats, Floats]:
        """What the merge of each two coalitions changes; their places; the merged sums of P, and the merged cost."""
        used = np.flatnonzero(self.count[row])
        order = np.argsort(self.labels[row], kind="stable")
        starts = np.searchsorted(self.labels[row, order], used)
        between = np.add.reduceat(self.pull[row][np.ix_(order, used)], starts)
        count, mass, inside, cost = (numbers[row, used] for numbers in (self.count, self.mass, self.inside, self.cost))
        inside = np.add.outer(inside, inside) + between
        merged = _cost(np.add.outer(count, count), np.add.outer(mass, mass), inside, self.weight)
        change = merged - np.add.outer(cost, cost)
        np.fill_diagonal(change, np.inf)
        return change, used, inside, merged


def _best_of_all(pulls: Floats, sizes: Floats, weight: float) -> list[list[int]]:
    """The best partition of all clients. It is built from the best partitions of all smaller sets of clients.

    A set of clients is an integer, in which bit i stands for client i.
    """
    everybody = 2 ** len(sizes) - 1
    among = (np.arange(1, everybody + 1)[:, None] >> np.arange(len(sizes)) & 1).astype(np.float64)
    inside = ((among @ pulls) * among).sum(axis=1) / 2
    costs = [0.0, *_cost(among.sum(axis=1), among @ sizes, inside, weight).tolist()]
    best, coalition = [0.0], [0]  # of a set: its objective, and the coalition of its smallest member
    for clients in range(1, everybody + 1):
        others = clients & (clients - 1)
        part, least, chosen = 0, np.inf, 0
        while True:
            together = clients ^ others | part
            if costs[together] + best[clients ^ together] < least:
                least, chosen = costs[together] + best[clients ^ together], together
            part = (part - others) & others  # the next larger subset of the others
            if not part:
                break
        best.append(least)
        coalition.append(chosen)
    groups = []
    while everybody:
        groups.append([row for row in range(len(sizes)) if coalition[everybody] >> row & 1])
        everybody ^= coalition[everybody]
    return groups


def _checked(distances: NDArray[np.floating], sizes: NDArray[np.number]) -> tuple[Floats, Floats]:
    """The matrix P (N, N) and the sizes as float64; ValueError for distances or sizes that cannot be used."""
    if distances.shape != (len(sizes), len(sizes)) or not np.isfinite(distances).all():
        raise ValueError(f"distances of shape {distances.shape} for {len(sizes)} clients, or not all finite")
    if not (sizes > 0).all():
        raise ValueError("every client needs a sample")
    pulls = _clipped(distances) * sizes
    return pulls + pulls.T, sizes.astype(np.float64)


def _clipped(distances: NDArray[np.floating]) -> Floats:
    clipped: Floats = np.maximum(distances, 0, dtype=np.float64)
    np.fill_diagonal(clipped, 0)
    return clipped


def _cost(count: _Number, mass: _Number, inside: _Number, weight: float) -> Floats:
    return np.asarray((count * weight * np.sqrt(mass) + inside) / mass, np.float64)
