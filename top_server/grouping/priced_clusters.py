"""Clusters of equal size by prices, for so many clients and clusters that an exact minimum-cost flow takes too long.

Every cluster l has a price, and a client k gains V_k . S_l - price_l from it. If every client is in the cluster from
which it gains most, and every cluster then has `size` clients, the prices solve the dual problem of the flow, and the
assignment is optimal. The prices are found on a short list of clusters for each client. A cluster may then still have
a few clients too many, which are moved. For any prices, no assignment is worth more than the sum of the clients' best
gains, plus `size` times the sum of the prices. The difference from this bound tells how far a result may be from the
optimum.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from top_server.grouping.request import Floats, Ints

#: How far the objective may be above the optimum, as a share of the objective.
TOLERANCE = 0.001
#: Most times that the lists are made in one assignment; more than 3 are seldom needed.
_MOST_LISTS = 5
#: Number of clusters on a client's list.
_LISTED = 12
_MOST_PASSES = 30
#: Share of the clients that may be in a full cluster when the prices are accepted; these clients are then moved.
_MISPLACED = 0.002
_GROWTH, _SHRINKING = 1.3, 0.5
#: Number of gains computed at a time (2 MiB, to fit into a core's cache), and number of threads that compute them.
_CHUNK, _THREADS = 2**18, 2
#: Random numbers below this are added to gains, because clients with equal gains would all choose the same cluster.
_JITTER = 2.0**-10


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """`labels` (N,), and `premiums` (L,): (price - half the squared norm) of each cluster, divided by `summed`."""

    labels: Ints
    premiums: Floats
    #: The objective is above the optimum by at most this share of the objective.
    excess: float


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """The best clusters of each client under `prices`: `clusters`, and their products V_k . S_l, both (listed, N)."""

    clusters: NDArray[np.int32]
    dots: Floats
    prices: Floats
    #: Whether every list has all clusters.
    complete: bool

    def gains(self, prices: Floats) -> Floats:
        return self.dots - prices[self.clusters]


def nearest_priced(rows: Ints, sums: Ints, size: int, summed: int, premiums: Floats) -> Assignment:
    """Puts exactly `size` of the `rows` (N, F) into each cluster, so that rows are near the centroids.

    The centroids are `sums` (L, F) / `summed`. `premiums` (L,) are a first guess; those of the iteration before are
    best.
    """
    if len(sums) == 1:
        return Assignment(np.zeros(len(rows), np.int64), premiums, 0.0)
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
        nearest = np.argpartition(asked[: len(products)] - products, listed - 1, axis=1)[:, :listed]
        clusters[:, chunk] = nearest.T
        products -= jitter[: len(products)]
        dots[:, chunk] = np.take_along_axis(products, nearest, axis=1).T

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(fill, range(0, len(points), len(jitter))))
    return _Lists(clusters, dots, prices, listed == len(centres))


def _chosen(lists: _Lists, prices: Floats) -> tuple[NDArray[np.int32], Floats]:
    """For each client, the cluster on its list from which it gains most, and this gain."""
    gains = lists.gains(prices)
    best, chosen = gains[0].copy(), lists.clusters[0].copy()
    for gain, clusters in zip(gains[1:], lists.clusters[1:], strict=True):
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(chosen, clusters, where=better)
    return chosen, best


def _settled(lists: _Lists, size: int) -> Floats:
    """Prices under which each cluster is chosen by about `size` clients.

    The price of a cluster rises while too many clients choose it, and falls while too few do. Its step grows while the
    direction stays the same, and shrinks when the direction turns. Prices change only so far that the lists stay
    valid: a cluster with a much lower price would belong on further lists.
    """
    prices, count = lists.prices, len(lists.prices)
    ordered = np.sort(lists.gains(prices), axis=0)
    reach = float(np.median(ordered[-1] - ordered[0]))
    # Medians and not means, because a median does not depend on the order in which a machine adds numbers.
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
    """An upper bound of each client's gain from any cluster, listed or not; shape (N,)."""
    best = _chosen(lists, prices)[1] + _JITTER
    if lists.complete:
        return best
    # A cluster that is not listed was no better than the last one listed, and its price fell at most by `fall`.
    fall = float((lists.prices - prices).max())
    unlisted: Floats = lists.gains(lists.prices).min(axis=0) + fall + _JITTER
    return np.where(unlisted > best, unlisted, best)


def _moved(points: Floats, centres: Floats, prices: Floats, size: int, lists: _Lists, jitter: Floats) -> Ints:
    """Labels (N,) by the best gain; surplus clients move to clusters with room, first those that lose least by it."""
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
    """For each value, how many equal values stand before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    turns = np.empty(len(values), np.int64)
    turns[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return turns
