"""A model of the time of a round, from what one training, one hop and one link take. Pure.

A relay: each group is a chain. A client trains when the client before it has trained and its model has come, and when
its node is free, because a node trains one client at a time. The round ends with the longest chain.

A parallel round: a node trains its clients one after the other; models pass the links meanwhile. The round ends when
the busiest node and the busiest link are done, and when the processors have done their work: they encrypt, decrypt,
hash and sum models. In a relay they wait most of the time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scale.network import HUB
from top_server.placing.workers import shares

#: The way of a model from one client of a chain to the next.
SAME_NODE, SAME_MACHINE, OTHER_MACHINE = "same node", "same machine", "other machine"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where clients are."""

    #: Client -> its node, and node -> its machine.
    node_of: Sequence[int]
    machine_of: Sequence[int]

    @classmethod
    def of(cls, clients: int, nodes: int, machines: int) -> Layout:
        """Clients are dealt over nodes in turn, as a run deals them, and nodes over machines."""
        node_of = {client: node for node, share in enumerate(shares(clients, nodes)) for client in share}
        return cls([node_of[client] for client in range(clients)], [1 + node % machines for node in range(nodes)])

    def machine(self, client: int) -> int:
        """The machine of a client."""
        return self.machine_of[self.node_of[client]]

    def way(self, before: int | None, client: int) -> str:
        """How the model comes to a client from the client before it; the first one gets it from the hub."""
        if before is None or self.machine(before) != self.machine(client):
            return OTHER_MACHINE
        return SAME_NODE if self.node_of[before] == self.node_of[client] else SAME_MACHINE


@dataclass(frozen=True, slots=True)
class Parts:
    """What was measured, in seconds, and the rate of a link in bytes per second.

    `across` and `within`: seconds of work of a processor for each model that goes from one machine to another, or from
    one process to another on a machine. All machines together have so many `processors`, which share the work evenly.
    """

    training: float
    hop: Mapping[str, float]
    rate: float
    model_bytes: int
    across: float = 0.0
    within: float = 0.0
    processors: int = 1


def relay_s(groups: Sequence[Sequence[int]], layout: Layout, parts: Parts) -> float:
    """Seconds until all chains of a round have ended. A node trains its clients in the order in which models come."""
    free = [0.0] * len(layout.machine_of)
    coming = [(parts.hop[layout.way(None, group[0])], number, 0) for number, group in enumerate(groups)]
    heapq.heapify(coming)
    last = 0.0
    while coming:
        came, number, position = heapq.heappop(coming)
        group = groups[number]
        node = layout.node_of[group[position]]
        free[node] = done = max(free[node], came) + parts.training
        last = max(last, done)
        if position + 1 < len(group):
            hop = parts.hop[layout.way(group[position], group[position + 1])]
            heapq.heappush(coming, (done + hop, number, position + 1))
    return last


@dataclass(frozen=True, slots=True)
class Passages:
    """The models that pass in a parallel round: between machines by each link, and within machines."""

    into: Counter[int]
    out_of: Counter[int]
    within: int

    @property
    def across(self) -> int:
        """How many go from one machine to another."""
        return self.into.total()


def passages(groups: Sequence[Sequence[int]], managers: Sequence[int], layout: Layout) -> Passages:
    """The models of a round; `managers` has the machine of the manager of each group."""
    into: Counter[int] = Counter()
    out_of: Counter[int] = Counter()
    within = 0
    for group, manager in zip(groups, managers, strict=True):
        ways = [(manager, layout.machine_of[node]) for node in {layout.node_of[client] for client in group}]
        ways += [(layout.machine(client), manager) for client in group]
        if manager != HUB:  # it hands on the start, which it fetches once, and its result goes to the hub
            ways += [(HUB, manager), (manager, HUB)]
        for sender, receiver in ways:
            if sender == receiver:
                within += 1
            else:
                out_of[sender] += 1
                into[receiver] += 1
    return Passages(into, out_of, within)


def parallel_s(groups: Sequence[Sequence[int]], managers: Sequence[int], layout: Layout, parts: Parts) -> float:
    """Seconds until all groups have trained; `managers` has the machine of the manager of each group."""
    busy = Counter(layout.node_of[client] for group in groups for client in group)
    models = passages(groups, managers, layout)
    on_links = max([*models.into.values(), *models.out_of.values()]) * parts.model_bytes / parts.rate
    work = (models.across * parts.across + models.within * parts.within) / parts.processors
    return max(max(busy.values()) * parts.training, on_links, work)
