"""Nodes that have left a run and may come back: since when they are away and why, and how long to wait for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

#: After the end of its connection, a node may only have lost it for a moment: it joins again within so many seconds.
RETURN_S = 1.5
#: A top server that was frozen finds that its nodes have left. They try to join every five seconds.
AFTER_FREEZE_S = 7.0
#: How long a round waits at most for nodes that have just left, also if they leave one after the other.
RETURNS_S = 2 * AFTER_FREEZE_S
#: How long a run waits for its other clients after it had too few; nodes try to join every five seconds.
RETURN_TIMEOUT_S = 30.0
#: Why a client is away whose node is there again.
WITHOUT = "it has come back without this client"


class Cause(Enum):
    """What the top server knows of the end of a connection: how long the node may take to join again, in seconds."""

    ALONE = RETURN_S  # nothing else happened
    FREEZE = AFTER_FREEZE_S  # the top server itself was frozen a moment before


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that has left, with the clients that nobody hosts since."""

    node: str
    clients: frozenset[int]
    reason: str
    #: Time at which it left, in seconds.
    at: float
    cause: Cause = Cause.ALONE

    def patience_s(self, now: float) -> float:
        """How much longer, in seconds, a round waits for it; 0: no longer."""
        return max(0.0, self.at + self.cause.value - now)


@dataclass(frozen=True, slots=True)
class Departed:
    """A departure as the state of a run has it. Other processes have other clocks, so this one counts from 1970."""

    node: str
    clients: tuple[int, ...]
    reason: str
    #: Seconds since 1970.
    at: float

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`; raises KeyError, TypeError or ValueError for anything else."""
        if not all(type(client) is int for client in saved["clients"]) or not math.isfinite(saved["at"]):
            raise ValueError("a node that was away has no clients, or no time")
        return cls(str(saved["node"]), tuple(saved["clients"]), str(saved["reason"]), float(saved["at"]))


class Departures:
    """The nodes that are away."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a clock that stands still while this process is frozen."""
        self.now = now
        #: Whether a node that leaves is away. Before a run has its clients, nodes come and go.
        self.counting = False
        #: How many departures there were so far.
        self.number = 0
        #: No client is in two departures.
        self._away: list[Departure] = []
        #: Client -> its departure, and for how many seconds it was away, of clients that came back since they were
        #: last taken.
        self._returned: dict[int, tuple[Departure, float]] = {}

    def left(self, node: str, clients: Iterable[int], reason: str, cause: Cause = Cause.ALONE) -> None:
        """A node left."""
        self.number += 1
        self._away.append(Departure(node, frozenset(clients), reason, self.now(), cause))

    def save(self) -> list[Departed]:
        """The nodes that are away, for a top server that goes on with the run later."""
        now = time.time()
        return [
            Departed(found.node, tuple(sorted(found.clients)), found.reason, now - seconds)
            for found, seconds in self.away()
        ]

    def restore(self, saved: Iterable[Departed]) -> None:
        """Takes the nodes that `save` told of: the run has its clients already."""
        self.counting = True
        for one in saved:
            seconds = max(0.0, time.time() - one.at)
            self._away.append(Departure(one.node, frozenset(one.clients), one.reason, self.now() - seconds))

    def joined(self, node: str, clients: Iterable[int]) -> float | None:
        """A node joined with these clients; returns for how many seconds it was away, None if it is new.

        Clients that it hosted before, and does not host any more, stay away.
        """
        came, now = frozenset(clients), self.now()
        own = [found.at for found in self._away if found.node == node and found.reason != WITHOUT]
        for found in self._away:
            self._returned |= dict.fromkeys(found.clients & came, (found, now - found.at))
        left = [
            replace(found, clients=found.clients - came, reason=WITHOUT if found.node == node else found.reason)
            for found in self._away
        ]
        self._away = [found for found in left if found.clients]
        return now - max(own) if own else None

    def away(self) -> list[tuple[Departure, float]]:
        """The nodes that are away, and for how many seconds."""
        now = self.now()
        return [(found, now - found.at) for found in self._away]

    def dropped(self, client: int) -> bool:
        """Whether the node of a client has come back without it."""
        return any(client in found.clients and found.reason == WITHOUT for found in self._away)

    @property
    def clients(self) -> set[int]:
        """The clients of the nodes that are away."""
        return {client for found in self._away for client in found.clients}

    def patience_s(self, clients: Collection[int] | None = None) -> float:
        """How much longer to wait for nodes that left, or for those of these clients."""
        now = self.now()
        return max((found.patience_s(now) for found in self.waited_for(clients)), default=0.0)

    def waited_for(self, clients: Collection[int] | None = None) -> list[Departure]:
        """The nodes that left a moment ago, or those of them with one of these clients."""
        found = (one for one in self._away if clients is None or one.clients.intersection(clients))
        return [one for one in found if one.patience_s(self.now()) > 0]

    def returned(self, clients: Collection[int]) -> list[tuple[Departure, float]]:
        """The nodes that were away until these clients came back, and for how many seconds; not those taken before."""
        back: dict[tuple[Departure, float], set[int]] = {}
        for client in sorted(self._returned.keys() & set(clients)):
            back.setdefault(self._returned[client], set()).add(client)
        return [(replace(found, clients=frozenset(of)), seconds) for (found, seconds), of in back.items()]

    def take_returned(self) -> dict[int, float]:
        """Client -> seconds for which it was away, of clients that came back since the last call."""
        returned, self._returned = self._returned, {}
        return {client: seconds for client, (_, seconds) in returned.items()}
