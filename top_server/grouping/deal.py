"""Groups of clients with their times and class counts, between which pairs of clients are exchanged.

The members of a group train in turn, so that a group takes the sum of its members' times, and a round the longest of
these sums. How alike groups are is z of eq. 4 (FedGSP): the sum of ||S_a - S_b||^2 over all pairs of groups, where S
are the groups' class counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from top_server.grouping.request import Floats, Ints

#: Most clients of other groups that are looked at for the exchanges of one group; of more, so many are drawn.
MOST_OTHERS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """All exchanges of one of the L members of a group with one of K clients of other groups."""

    #: Rows of the other clients, (K,).
    others: Ints
    #: Times of the group and of the other client's group after each exchange, (L, K).
    own: Ints
    other: Ints
    #: Times of the other clients' groups before, (K,).
    other_before: Ints
    #: Change of z by each exchange, divided by twice the number of groups, (L, K).
    unlike: Floats


def best(costs: Floats | Ints) -> tuple[int, int]:
    """The place in `costs` (L, K) of the exchange that costs least; of the first, if several do."""
    place, others = int(np.argmin(costs)), int(costs.shape[1])
    return place // others, place % others


class Deal:
    """M groups of rows of `times` (N,), which are integers, and of `histograms` (N, F). A row may be in no group."""

    def __init__(self, groups: Sequence[Sequence[int]], times: Ints, histograms: Ints) -> None:
        self._times, self._histograms = times, histograms
        # Float64 is exact for integers up to 2**53, so that every machine makes the same choices.
        self._counts = np.asarray(histograms, np.float64)
        self._squares = (self._counts**2).sum(axis=1)
        self._members = [np.array(group, np.int64) for group in groups]
        self._rows = np.concatenate(self._members)
        self._group_of = np.full(len(times), -1)
        for number, members in enumerate(self._members):
            self._group_of[members] = number
        #: Time of each group, (M,).
        self.times: Ints = np.array([times[members].sum() for members in self._members], np.int64)
        self._sums = np.stack([self._counts[members].sum(axis=0) for members in self._members])

    @property
    def groups(self) -> list[list[int]]:
        """The groups as row numbers, in new lists."""
        return [members.tolist() for members in self._members]

    @property
    def longest(self) -> int:
        """Time of the longest group."""
        return int(self.times.max())

    @property
    def unlikeness(self) -> float:
        """z of eq. 4."""
        sums = self._sums
        return float(len(sums) * (sums**2).sum() - (sums.sum(axis=0) ** 2).sum())

    def copy(self) -> "Deal":
        """A deal that changes apart from this one."""
        return Deal(self.groups, self._times, self._histograms)

    def exchanges(self, group: int, rng: np.random.Generator) -> Exchanges:
        """The exchanges of a group. `rng` draws other clients if there are very many."""
        times, counts, sums, squares = self._times, self._counts, self._sums, self._squares
        mine = self._members[group]
        others = self._rows[self._group_of[self._rows] != group]
        if len(others) > MOST_OTHERS:
            others = np.sort(rng.choice(others, MOST_OTHERS, replace=False))
        theirs = self._group_of[others]
        shorter = times[mine][:, None] - times[others]
        # With d = V_other - V_mine, z changes by 2M ((S_group - S_theirs) . d + ||d||^2).
        at_others = counts[others] @ sums[group] - np.einsum("kf,kf->k", sums[theirs], counts[others])
        at_mine = (counts[mine] @ sums.T)[:, theirs] - (counts[mine] @ sums[group])[:, None]
        apart = squares[mine][:, None] + squares[others] - 2 * (counts[mine] @ counts[others].T)
        return Exchanges(
            others=others,
            own=self.times[group] - shorter,
            other=self.times[theirs] + shorter,
            other_before=self.times[theirs],
            unlike=at_others + at_mine + apart,
        )

    def change(self, group: int, member: int, other: int) -> int:
        """The exact change of z by one exchange, divided by 2M. `exchanges` rounds it if products exceed 2**53."""
        own, theirs = self._members[group], self._members[int(self._group_of[other])]
        # Python's integers have no largest value.
        apart = (self._histograms[own].sum(axis=0) - self._histograms[theirs].sum(axis=0)).astype(object)
        moved = (self._histograms[other] - self._histograms[own[member]]).astype(object)
        return int(((apart + moved) * moved).sum())

    def exchange(self, group: int, member: int, other: int) -> None:
        """Exchanges the member at a position of a group with a client (a row) of another group."""
        mine, theirs = int(self._members[group][member]), int(self._group_of[other])
        self._members[group][member] = other
        place = int(np.flatnonzero(self._members[theirs] == other)[0])
        self._members[theirs][place] = mine
        self._group_of[mine], self._group_of[other] = theirs, group
        shorter, moved = self._times[mine] - self._times[other], self._counts[other] - self._counts[mine]
        self.times[group] -= shorter
        self.times[theirs] += shorter
        self._sums[group] += moved
        self._sums[theirs] -= moved
