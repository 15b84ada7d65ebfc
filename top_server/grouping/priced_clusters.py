"""Clusters of equal size by prices, where the flow over every arc from a client to a cluster takes too long.

Every cluster has a price, and a client's gain from cluster l is V_k . S_l - price_l. If all clients take their best
gain and each cluster then has `size` of them, the prices solve the dual of the flow and the assignment is optimal.
The prices are found on a short list of clusters per client; the few clients too many somewhere then move on. Under
any prices no assignment has more than the sum of the best gains: what ours has less bounds how far it is from exact.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Objective above the exact one that is good enough, as a share of the objective.
TOLERANCE = 0.001
#: Lists made in one assignment at most; more than 3 are seldom needed.
_MOST_LISTS = 5
#: Clusters on a client's list.
_LISTED = 12
_MOST_PASSES = 30
#: Share of the clients that the prices may leave to be moved.
_MISPLACED = 0.002
_GROWTH, _SHRINKING = 1.3, 0.5
#: Gains computed at a time, 2 MiB, to stay in a core's cache, and threads that do so.
_CHUNK, _THREADS = 2**18, 2
#: Equal gains are parted at random by less than this, else equal clients would all want the same cluster.
_JITTER = 2.0**-10


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """`labels` (N,), what each cluster asks above its own half squared norm, and a bound on the excess objective."""

    labels: Ints
    premiums: Floats
    #: At most this much, as a share of the objective, above the least possible.
    excess: float


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """Each client's best clusters under `prices`: `clusters` and their V_k . S_l, both (listed, N)."""

    clusters: NDArray[np.int32]
    dots: Floats
    prices: Floats
    #: Whether every cluster is listed.
    complete: bool

    def gains(self, prices: Floats) -> Floats:
        return self.dots - prices[self.clusters]


def nearest_priced(rows: Ints, sums: Ints, size: int, summed: int, premiums: Floats) -> Assignment:
    """Labels with exactly `size` of the `rows` (N, F) per cluster, near those that are nearest to the centroids.

    Centroids are `sums` (L, F) / `summed`; `premiums` (L,), best those of the iteration before, are a first guess.
    """
    points, centres = rows.astype(np.float64), sums.astype(np.float64)
    own = 0.5 * (centres**2).sum(axis=1) / summed
    constant = 0.5 * summed * float((points**2).sum()) + size * float(own.sum())
    jitter = np.random.default_rng(0).random((max(1, _CHUNK // len(sums)), len(sums))) * _JITTER
    prices = own + premiums * summed
    best = Assignment(np.zeros(0, np.int64), premiums, np.inf)
    for _ in range(_MOST_LISTS):
        lists = _lists(points, centres, prices, jitter)
        prices = _settled(lists, size)
        labels = _moved(points, centres, prices, size, lists, jitter)
        dots = float(np.einsum("kf,kf->", points, centres[labels]))
        most = float(_best_possible(lists, prices).sum()) - dots + size * float(prices.sum())
        excess = most / max(constant - dots, 1.0)
        if excess < best.excess:
            best = Assignment(labels, (prices - own) / summed, excess)
        if excess <= TOLERANCE:
            break
    return best


def _lists(points: Floats, centres: Floats, prices: Floats, jitter: Floats) -> _Lists:
    listed, asked = min(_LISTED, len(centres)), prices + jitter
    clusters = np.empty((listed, len(points)), np.int32)
    dots = np.empty((listed, len(points)))

    def fill(first: int) -> None:
        chunk = slice(first, first + len(jitter))
        products = points[chunk] @ centres.T
        losses = asked[: len(products)] - products
        nearest = np.argpartition(losses, listed - 1, axis=1)[:, :listed]
        clusters[:, chunk] = nearest.T
        products -= jitter[: len(products)]
        dots[:, chunk] = np.take_along_axis(products, nearest, axis=1).T

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(fill, range(0, len(points), len(jitter))))
    return _Lists(clusters, dots, prices, listed == len(centres))


def _chosen(lists: _Lists, prices: Floats) -> tuple[NDArray[np.int32], Floats]:
    """The best cluster on each list, and its gain."""
    gains = lists.gains(prices)
    best, chosen = gains[0].copy(), lists.clusters[0].copy()
    for gain, clusters in zip(gains[1:], lists.clusters[1:], strict=True):
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(chosen, clusters, where=better)
    return chosen, best


def _settled(lists: _Lists, size: int) -> Floats:
    """Prices under which clusters have about `size` clients: each rises while too many come and falls while too few.

    Steps grow while they keep their direction and shrink when it turns. No price leaves the lists' reach: the cluster
    of a much lower price would belong on lists where it is missing.
    """
    prices, count = lists.prices, len(lists.prices)
    ordered = np.sort(lists.gains(prices), axis=0)
    reach = float(np.median(ordered[-1] - ordered[0]))
    # Medians, not means: their value does not depend on the order in which a machine adds.
    steps = np.full(count, 0.5 * float(np.median(ordered[-1] - ordered[-2])))
    directions, best, least = np.zeros(count), prices, np.inf
    for _ in range(_MOST_PASSES):
        surplus = np.bincount(_chosen(lists, prices)[0], minlength=count) - size
        misplaced = np.abs(surplus).sum() / 2
        if misplaced < least:
            best, least = prices, misplaced
        if misplaced <= _MISPLACED * lists.clusters.shape[1]:
            break
        turned = directions * np.sign(surplus)
        directions = np.sign(surplus).astype(np.float64)
        steps = np.minimum(steps * np.where(turned > 0, _GROWTH, np.where(turned < 0, _SHRINKING, 1.0)), reach / 4)
        moves = steps * directions * np.minimum(1.0, 3 * np.abs(surplus) / size)
        prices = np.clip(prices + moves, lists.prices - reach, lists.prices + reach)
    return best


def _best_possible(lists: _Lists, prices: Floats) -> Floats:
    """No cluster, listed or not, gives a client more; shape (N,)."""
    best = _chosen(lists, prices)[1] + _JITTER
    if lists.complete:
        return best
    # What is not listed was no better than the last on the list, and its price fell by no more than the largest fall.
    fall = float((lists.prices - prices).max())
    unlisted: Floats = lists.gains(lists.prices).min(axis=0) + fall + _JITTER
    return np.where(unlisted > best, unlisted, best)


def _moved(points: Floats, centres: Floats, prices: Floats, size: int, lists: _Lists, jitter: Floats) -> Ints:
    """Labels by best gain; clients too many in a cluster go where there is room, those that lose least first."""
    chosen, gained = _chosen(lists, prices)
    labels = chosen.astype(np.int64)
    surplus = np.bincount(labels, minlength=len(prices)) - size
    places = np.flatnonzero(surplus < 0)
    room = -surplus[places]
    movable = np.flatnonzero(surplus[labels] > 0)
    losses = points[movable] @ centres[places].T
    losses -= prices[places]
    losses -= jitter[:, places][movable % len(jitter)]
    np.subtract(gained[movable, None], losses, out=losses)
    while len(movable):
        to = losses.argmin(axis=1)
        order = np.argsort(losses[np.arange(len(movable)), to], kind="stable")
        order = order[_turn(labels[movable[order]]) < surplus[labels[movable[order]]]]
        order = order[_turn(to[order]) < room[to[order]]]
        going, target = movable[order], to[order]
        surplus -= np.bincount(labels[going], minlength=len(surplus))
        room -= np.bincount(target, minlength=len(room))
        stay = np.ones(len(movable), bool)
        stay[order] = False
        stay &= surplus[labels[movable]] > 0
        labels[going] = places[target]
        movable, losses = movable[stay], losses[stay]
        losses[:, room == 0] = np.inf
    return labels


def _turn(values: Ints) -> Ints:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered)
    turns = np.empty(len(values), np.int64)
    turns[order] = np.arange(len(values)) - first
    return turns
