"""The input of every grouping, `GroupingRequest`, and its output, `Plan`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import MOST_SAMPLES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class GroupingRequest:
    """Evidence about N clients; row i of every array belongs to `clients[i]`."""

    round: int
    #: Wanted number of groups. A grouping that finds the number itself ignores it.
    groups: int
    seed: int
    clients: tuple[int, ...]
    #: Training samples per client, shape (N,).
    sizes: Ints
    #: Training samples per class, raw counts, shape (N, F).
    histograms: Ints | None = None
    #: Named evidence with a row per client: pairwise ones ("gram") of shape (N, N), "costs" of shape (N, models).
    matrices: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    #: Clients that joined during the run. They are placed one by one, after the other clients were grouped.
    newcomers: tuple[int, ...] = ()
    #: The groups of the round before, without clients that have left.
    settled: tuple[tuple[int, ...], ...] = ()
    #: Clients of these groups whose nodes are away: with them nobody could be compared in this round.
    away: tuple[int, ...] = ()
    #: The number by which the updates behind matrix `gram` were divided: the learning rate of the round before.
    learning_rate: float = 1.0
    #: With `--balance time`: how long the training of each client is expected to take, shape (N,).
    seconds: Floats | None = None

    def __post_init__(self) -> None:
        count = len(self.clients)
        if not count or self.groups < 1:
            raise ValueError(f"{self.groups} groups of {count} clients: both count from 1")
        if len(set(self.clients)) != count:
            raise ValueError("a client is listed twice")
        if self.sizes.shape != (count,):
            raise ValueError(f"sizes have shape {self.sizes.shape} for {count} clients")
        if self.sizes.min() < 0 or self.sizes.max() > MOST_SAMPLES:
            raise ValueError(f"sizes must be from 0 to {MOST_SAMPLES}")
        if self.histograms is not None:
            if self.histograms.ndim != 2 or len(self.histograms) != count:
                raise ValueError(f"histograms have shape {self.histograms.shape} for {count} clients")
            if self.histograms.dtype.kind not in "iu" or self.histograms.min(initial=0) < 0:
                raise ValueError("histograms must be counts: integers of at least 0")
            if self.histograms.max(initial=0) > MOST_SAMPLES:
                raise ValueError(f"histograms count more than {MOST_SAMPLES} samples of a class")
        for name, matrix in self.matrices.items():
            if matrix.ndim != 2 or len(matrix) != count:
                raise ValueError(f"matrix {name!r} has shape {matrix.shape} for {count} clients")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"a learning rate of {self.learning_rate}")
        if self.seconds is not None:
            if self.seconds.shape != (count,):
                raise ValueError(f"seconds have shape {self.seconds.shape} for {count} clients")
            if not (np.isfinite(self.seconds).all() and self.seconds.min() >= 0):
                raise ValueError("seconds must be finite and at least 0")
        if strangers := set(self.newcomers) - set(self.clients):
            raise ValueError(f"newcomers that are not among the clients: {listed(strangers)}")
        settled = [client for group in self.settled for client in group]
        if len(set(settled)) != len(settled) or not set(settled) <= set(self.clients) or not all(self.settled):
            raise ValueError("the settled groups must be disjoint, not empty, and of these clients")

    @property
    def settled_rows(self) -> list[list[int]]:
        """The settled groups as row numbers, in new lists at each call."""
        row_of = {client: row for row, client in enumerate(self.clients)}
        return [[row_of[client] for client in group] for group in self.settled]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who trains with whom: disjoint groups of client ids, and the clients that do not train in this round."""

    groups: tuple[tuple[int, ...], ...]
    idle: tuple[int, ...]
    #: What the grouping says about its choice; becomes a part of the recorded reason.
    note: str = field(default="", compare=False)
    #: Why the choice should be looked at, if it should; it is logged.
    warning: str = field(default="", compare=False)

    @classmethod
    def from_rows(cls, groups: Iterable[Iterable[int]], request: GroupingRequest) -> Plan:
        """The plan whose groups are given as row numbers of the request; all other clients are idle."""
        rows = [sorted(group) for group in groups]
        busy = {row for group in rows for row in group}
        return cls(
            groups=tuple(tuple(request.clients[row] for row in group) for group in rows),
            idle=tuple(client for row, client in enumerate(request.clients) if row not in busy),
        )

    @property
    def clients(self) -> frozenset[int]:
        """The clients that are in a group or idle."""
        return frozenset(client for group in (*self.groups, self.idle) for client in group)

    def names(self, clients: Iterable[int]) -> bool:
        """Whether each of these clients is in a group or idle."""
        return self.clients.issuperset(clients)

    def among(self, clients: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """The groups without all other clients; a group that would be empty is left out."""
        there = set(clients)
        groups = (tuple(client for client in group if client in there) for group in self.groups)
        return tuple(group for group in groups if group)

    def with_absent(self, before: Plan) -> Plan:
        """The plan with the clients that only the earlier plan `before` names, because their nodes are away.

        Each of them goes where most members of its former group are now. If none of these is in a group any more, the
        absent clients of that former group are a group again.
        """
        groups = [list(group) for group in self.groups]
        here = self.clients
        for former in before.groups:
            away = [client for client in former if client not in here]
            common = [len(set(former).intersection(group)) for group in groups] if away else []
            if max(common, default=0):
                groups[common.index(max(common))] += away
            elif away:
                groups.append(away)
        return replace(self, groups=tuple(tuple(sorted(group)) for group in groups))

    def with_latecomers(self, clients: Iterable[int]) -> tuple[Plan, dict[int, int]]:
        """The plan with those of `clients` that it does not name, and client -> index of the group it was put into.

        Each client goes into the smallest group; in a tie, into the first one.
        """
        groups = list(self.groups)
        placed = {}
        for client in sorted(set(clients).difference(self.idle, *self.groups)):
            index = min(range(len(groups)), key=lambda index: len(groups[index]))
            groups[index] += (client,)
            placed[client] = index
        return Plan(tuple(groups), self.idle), placed

    def check(self, request: GroupingRequest) -> None:
        """Raise ValueError unless every client of the request is in exactly one group or idle."""
        if not self.groups:
            raise ValueError("the plan has no group")
        seen: set[int] = set()
        places = [(f"group {index}", group) for index, group in enumerate(self.groups)]
        for place, members in [*places, ("idle", self.idle)]:
            if not members and place != "idle":
                raise ValueError(f"{place} of the plan is empty")
            for client in members:
                if client in seen:
                    raise ValueError(f"the plan names client {client} twice, again in {place}")
                seen.add(client)
        known = set(request.clients)
        if strangers := seen - known:
            raise ValueError(f"the plan names clients that were not asked about: {listed(strangers)}")
        if missing := known - seen:
            raise ValueError(f"the plan leaves out, neither grouped nor idle: {listed(missing)}")


def listed(clients: Iterable[int], most: int = 10) -> str:
    """Text with the first of some clients, and the number of the others."""
    clients = set(clients)
    first = ", ".join(str(client) for client in sorted(clients)[:most])
    return first if len(clients) <= most else f"{first} and {len(clients) - most} more"


def ranges(clients: Iterable[int]) -> str:
    """Text with all of some clients, such as 0-4,7: consecutive ones with their first and last."""
    runs: list[list[int]] = []
    for client in sorted(clients):
        if runs and runs[-1][-1] == client - 1:
            runs[-1].append(client)
        else:
            runs.append([client])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
