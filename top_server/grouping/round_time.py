"""The shortest round: groups of given sizes whose longest group takes as little time as possible.

A group takes the sum of its members' times. Times are integers, so that all machines find the same groups. To find the
best groups is NP-hard. So there are a bound that no groups can be below, and a search that is seldom far above it.
"""

from collections.abc import Sequence

import numpy as np

from top_server.grouping.deal import Deal, best
from top_server.grouping.request import Ints

#: How often the search begins again from its best groups, with some clients exchanged at random.
_STARTS = 30
#: Clients that are exchanged at random.
_SHAKEN = 3


def least_time(times: Ints, sizes: Sequence[int]) -> int:
    """A time that the longest of M groups of these sizes takes at least, whichever of the clients are in it.

    `times` has the shape (N,), N is the sum of `sizes`, and L is the smallest size.

    - The i <= M slowest clients are in i groups at most, with i (L - 1) others at least. So some group takes the mean
      over i groups of the i longest times and the i (L - 1) shortest, or more. (In fewer groups the mean is larger.)
    - Of the kM + 1 slowest clients, k + 1 are in the same group.
    - If no group has more than two members, the client with the i-th longest time is best paired with the client with
      the i-th shortest.
    """
    descending = np.sort(times)[::-1]
    groups, smallest = len(sizes), min(sizes)
    longest = np.concatenate([[0], np.cumsum(descending)])
    shortest = np.concatenate([[0], np.cumsum(descending[::-1])])
    bounds = [-(-int(longest[-1]) // groups)]
    bounds += [-(-int(longest[i] + shortest[i * (smallest - 1)]) // i) for i in range(1, groups + 1)]
    for more in range(1, smallest):
        together = int(longest[more * groups + 1] - longest[more * groups - more])
        bounds.append(together + int(shortest[smallest - more - 1]))
    if max(sizes) <= 2:
        paired = np.concatenate([descending, np.zeros(2 * groups - len(descending), np.int64)])
        bounds.append(int((paired[:groups] + paired[::-1][:groups]).max()))
    return max(bounds)


def short_groups(times: Ints, sizes: Sequence[int], enough: int, rng: np.random.Generator) -> list[list[int]]:
    """Groups of these sizes, as positions in `times`, whose longest takes little time; the search ends at `enough`."""
    deal = _dealt_by_time(times, sizes)
    _shorten(deal, enough, rng)
    for _ in range(_STARTS if len(sizes) > 1 else 0):
        if deal.longest <= enough:
            break
        other = deal.copy()
        for _ in range(_SHAKEN):
            group = int(rng.integers(len(sizes)))
            found = other.exchanges(group, rng)
            other.exchange(group, int(rng.integers(len(found.own))), int(rng.choice(found.others)))
        _shorten(other, enough, rng)
        if other.longest < deal.longest:
            deal = other
    return deal.groups


def _dealt_by_time(times: Ints, sizes: Sequence[int]) -> Deal:
    """Each client, the longest time first, goes to the group with the smallest sum that has a place."""
    groups: list[list[int]] = [[] for _ in sizes]
    sums, places = np.zeros(len(sizes), np.int64), np.array(sizes)
    for client in np.argsort(-times, kind="stable").tolist():
        open_groups = np.flatnonzero(places)
        group = int(open_groups[np.argmin(sums[open_groups])])
        groups[group].append(client)
        sums[group] += times[client]
        places[group] -= 1
    return Deal(groups, times, np.zeros((len(times), 0), np.int64))


def _shorten(deal: Deal, enough: int, rng: np.random.Generator) -> None:
    """Exchanges members of the longest group as long as that helps, and it takes more than `enough`."""
    while deal.longest > enough and len(deal.times) > 1:
        longest = int(deal.times.argmax())
        found = deal.exchanges(longest, rng)
        after = np.maximum(found.own, found.other)
        member, other = best(after)
        if after[member, other] >= deal.longest:
            return
        deal.exchange(longest, member, int(found.others[other]))
