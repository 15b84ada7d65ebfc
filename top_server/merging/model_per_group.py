"""No merge across groups: every client has the model of the group that it last trained in (HCCT, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedgsp.messages import ModelRef, Results
from top_server.merging.base import GroupModel, Merging, Starts
from top_server.models import INITIAL, Changes, Held, Holdings, Made, client_slot
from top_server.remembered import remembered


@dataclass(eq=False)
class ModelPerGroup(Merging):
    """A group starts from the mean of its members' models, weighted by samples; the model of one client stays with it.

    Lasting groups (see `Scheme.lasts`) start from the models of the members that trained most recently: the model of a
    member that came late, was away or was skipped would only pull the group back.
    """

    alone: ClassVar[Results | None] = Results.RETAINED

    #: Client -> the round in which its model was trained.
    _trained: dict[int, int] = remembered()

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """A model that several members share counts once, with the samples of all of them."""
        there = [client for client in group if client in holdings.samples]
        if self.settings.lasts:
            latest = max((self._trained.get(client, 0) for client in there), default=0)
            there = [client for client in there if self._trained.get(client, 0) == latest]
        weights: dict[ModelRef, tuple[Held, float]] = {}
        for client in there:
            held = self.of(client, holdings.slots)
            weights[held.ref] = (held, weights.get(held.ref, (held, 0.0))[1] + holdings.samples[client])
        return tuple(weights.values())

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The clients that trained have the model of the group now, or their own; the others keep theirs."""
        if group.weights is None:
            self._trained.update(dict.fromkeys(group.members, round_number))
            return {client_slot(client): own.held for client, own in group.members.items()}
        self._trained.update(dict.fromkeys(group.trained, round_number))
        made = Made(self.model_id(round_number, group.number), group.weights)
        return {client_slot(client): made for client in sorted(group.trained)}

    def lose(self, clients: Iterable[int], slots: Mapping[str, Held]) -> Mapping[int, str]:
        """A client whose node lost its model is a newcomer again, unless its group has given it another since."""
        gone = [client for client in sorted(clients) if self.of(client, slots).client == client]
        for client in gone:
            self._trained.pop(client, None)
        return {client: client_slot(client) for client in gone}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The client's own model or that of its group; the initial model if the client has not trained yet."""
        return slots.get(client_slot(client)) or slots[INITIAL]

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """A client that joins late may have been given a model that others trained."""
        if self.of(client, slots).ref.id != self.initial_id(INITIAL):
            return ""
        return "it never trained, or what it had trained was lost"

    def welcome(self, clients: Iterable[int]) -> tuple[str, ...]:
        """The newcomers' own slots."""
        return tuple(map(client_slot, clients))

    def clients(self, holdings: Holdings) -> Iterable[int]:
        """The clients that trained, and those that are present."""
        trained = {int(slot.removeprefix("client ")) for slot in holdings.slots if slot.startswith("client ")}
        return sorted(trained.union(holdings.samples))
