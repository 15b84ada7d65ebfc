"""Makes a round of relays short: exchanges clients between ICG's groups until no group takes much longer than it must.

The groups keep their sizes, and a round keeps its clients. If the groups are short enough as dealt, they stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from top_server.grouping.deal import Deal, best
from top_server.grouping.request import Floats, Ints
from top_server.grouping.round_time import least_time, short_groups

#: The longest group may take longer than the least possible time by this part of it: 1.1 times as long.
SLACK = 10
#: Times are integers: the longest of a client is this number.
_LONGEST = 2**32
#: An exchange that shortens groups is looked for among those that shorten by this share of the most possible.
_SHARE = 0.5
#: How often the search for similar groups begins again, with some clients exchanged at random: less often if there are
#: more clients, since it takes longer then.
_STARTS, _STARTS_BY_CLIENT = 60, 24_000
#: Clients that are exchanged at random.
_SHAKEN = 3


@dataclass(frozen=True, slots=True, eq=False)
class Balanced:
    """Groups after balancing."""

    groups: list[list[int]]
    #: Time of the longest group, after and before, divided by the least possible time.
    longest: float
    longest_before: float
    #: z of eq. 4 after balancing, divided by z before; 1 if both are 0.
    unlikeness: float

    def __str__(self) -> str:
        if self.longest == self.longest_before:
            return f"the groups are balanced in time as dealt: the longest takes {self.longest:.2f} times the least"
        return (
            f"balanced by time: the longest group takes {self.longest:.2f} times the least possible time, and would"
            f" have taken {self.longest_before:.2f} times; difference of the groups {self.unlikeness:.2f} times that"
            " before"
        )


def balanced(groups: Sequence[Sequence[int]], seconds: Floats, histograms: Ints, rng: np.random.Generator) -> Balanced:
    """Groups of the same sizes and clients, whose longest takes at most 1.1 times as long as it must.

    `groups` has row numbers of `seconds` (N,), the time that each client takes, and of `histograms` (N, F). If the
    bound on the shortest round is too low to tell, the groups are as short as the search finds. Among such groups they
    are at least as similar (z of eq. 4) as `groups`, or as similar as the search finds.
    """
    times = _as_integers(seconds)
    dealt = Deal(groups, times, histograms)
    sizes, rows = [len(group) for group in groups], np.concatenate([np.array(group) for group in groups])
    least = least_time(times[rows], sizes)
    most = least + least // SLACK
    if dealt.longest <= most:
        return Balanced(dealt.groups, dealt.longest / max(1, least), dealt.longest / max(1, least), 1.0)
    short = [rows[positions].tolist() for positions in short_groups(times[rows], sizes, most, rng)]
    most = max(most, Deal(short, times, histograms).longest)
    deal = dealt.copy()
    if not _fit(deal, most, rng):
        deal = Deal(short, times, histograms)
    deal = _alike(deal, most, dealt.unlikeness, rng)
    before, after = dealt.unlikeness, deal.unlikeness
    ratio = after / before if before else 1.0 + (after > 0)
    return Balanced(deal.groups, deal.longest / least, dealt.longest / least, ratio)


def _as_integers(seconds: Floats) -> Ints:
    longest = float(seconds.max())
    return np.asarray(np.rint(seconds / longest * _LONGEST), np.int64) if longest else np.zeros(len(seconds), np.int64)


def _fit(deal: Deal, most: int, rng: np.random.Generator) -> bool:
    """Exchanges members of the longest group until none takes more than `most`; False if that cannot be had so.

    Of the exchanges that shorten much, the one is taken that keeps the groups most alike.
    """
    while deal.longest > most:
        longest = int(deal.times.argmax())
        found = deal.exchanges(longest, rng)
        before = deal.longest - most + np.maximum(found.other_before - most, 0)
        shorter = before - np.maximum(found.own - most, 0) - np.maximum(found.other - most, 0)
        if shorter.max() <= 0:
            return False
        member, other = best(np.where(shorter >= _SHARE * shorter.max(), found.unlike, np.inf))
        deal.exchange(longest, member, int(found.others[other]))
    return True


def _alike(deal: Deal, most: int, enough: float, rng: np.random.Generator) -> Deal:
    """The deal after exchanges that make groups more alike, while no group takes more than `most`.

    The search ends at z = `enough`. It begins again from its best groups if it does not get there.
    """
    _smooth(deal, most, enough, rng)
    clients = sum(map(len, deal.groups))
    for _ in range(min(_STARTS, _STARTS_BY_CLIENT // clients)):
        if deal.unlikeness <= enough:
            break
        other = deal.copy()
        for _ in range(_SHAKEN):
            group = int(rng.integers(len(other.times)))
            found = other.exchanges(group, rng)
            possible = np.argwhere((found.own <= most) & (found.other <= most))
            if len(possible):
                member, place = possible[int(rng.integers(len(possible)))]
                other.exchange(group, int(member), int(found.others[place]))
        _smooth(other, most, enough, rng)
        if other.unlikeness < deal.unlikeness:
            deal = other
    return deal


def _smooth(deal: Deal, most: int, enough: float, rng: np.random.Generator) -> None:
    """Takes the best exchange of each group in turn, until none lowers z within `most`, or z is at most `enough`."""
    groups, group, in_vain = len(deal.times), 0, 0
    while in_vain < groups and deal.unlikeness > enough:
        found = deal.exchanges(group, rng)
        costs = np.where((found.own <= most) & (found.other <= most), found.unlike, np.inf)
        member, other = best(costs)
        client = int(found.others[other])
        # Every exchange changes z by an integer; a smaller number is an error of rounding. With very large counts such
        # an error can be larger, so that an exchange and the one that takes it back would both seem to gain.
        if costs[member, other] < -0.25 and deal.change(group, member, client) < 0:
            deal.exchange(group, member, client)
            in_vain = 0
        else:
            in_vain, group = in_vain + 1, (group + 1) % groups
