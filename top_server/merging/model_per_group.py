"""No merge across groups: every client has the model of the group that it last trained in (HCCT, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fedgsp.messages import Failure, FailureCode, ModelRef, Results
from top_server.groups.task import LOST
from top_server.merging.base import Merging, Starts
from top_server.models import INITIAL, Held, client_slot

if TYPE_CHECKING:
    from top_server.groups.task import GroupOutcome
    from top_server.run import Run


class ModelPerGroup(Merging):
    """A group starts from the mean of its members' models, weighted by samples; one alone keeps its model at home.

    Where groups last (see `Scheme`), from what those of them have who trained last: a client that came late, or was
    away or skipped for a while, would only pull it back.
    """

    alone: ClassVar[Results | None] = Results.RETAINED

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: Client -> the last round that its model is of; for those that trained.
        self._trained: dict[int, int] = {}

    def save(self) -> dict[str, Any]:
        """When each client trained last."""
        return {"trained": self._trained}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same."""
        self._trained = {int(client): number for client, number in saved["trained"].items()}

    def start(self, group: Iterable[int]) -> Starts:
        """A model that several members share counts once, with the samples of all of them."""
        there = {client: member for client in group if (member := self.run.membership.member(client)) is not None}
        if self.run.scheme.lasts:
            latest = max((self._trained.get(client, 0) for client in there), default=0)
            there = {client: member for client, member in there.items() if self._trained.get(client, 0) == latest}
        weights: dict[ModelRef, tuple[Held, float]] = {}
        for client, member in there.items():
            held = self.of(client)
            weights[held.ref] = (held, weights.get(held.ref, (held, 0.0))[1] + member.samples)
        return tuple(weights.values())

    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """Those who took part have the group's model now; the others keep theirs."""
        self.note_lost(outcome)
        if outcome.task.program == "alone":
            held = {client_slot(client): model for client, model in outcome.own_models.items()}
            self.run.models.point(held)
            self._trained.update(dict.fromkeys(outcome.own_models, round_number))
            return outcome.result if isinstance(outcome.result, Failure) and not held else None
        weights = await self.run.take(outcome)
        if isinstance(weights, Failure):
            return weights
        model_id = self.group_model_id(round_number, outcome.task.number)
        self.run.models.put(map(client_slot, sorted(outcome.took_part)), model_id, weights)
        self._trained.update(dict.fromkeys(outcome.took_part, round_number))
        return None

    def note_lost(self, outcome: GroupOutcome) -> None:
        """A model that its node lost is lost: its client is a newcomer again, unless its group gave it another.

        While only the node is lost, the model may come back with it.
        """
        gone = {client: failure for client, failure in outcome.lost.items() if failure.code not in LOST}
        for skipped in outcome.skipped:
            why, own = skipped.failure, skipped.client in outcome.task.own_starts
            if own and why is not None and why.code is FailureCode.NO_SUCH_MODEL:
                gone[skipped.client] = why
        for client, failure in sorted(gone.items()):
            if self.of(client).client == client:
                self.run.models.drop(client_slot(client))
                self._trained.pop(client, None)
                self.afresh.add(client)
                self.run.journal.record("model_lost", client=client, reason=str(failure))

    def of(self, client: int) -> Held:
        """Its own or its group's; the initial model for one that has not trained yet."""
        slot = client_slot(client)
        return self.run.models[slot if slot in self.run.models else INITIAL]

    def untrained(self, client: int) -> str:
        """A client that comes late may have been given what others trained."""
        if self.of(client).ref.id != self.run.initial_id(INITIAL):
            return ""
        return "it never trained, or what it had trained was lost"

    def welcome(self, clients: Iterable[int], held: Held) -> None:
        """Gives newcomers a model to start from."""
        self.run.models.point({client_slot(client): held for client in clients})

    def clients(self) -> Iterable[int]:
        """Those that trained, and those that are there."""
        return sorted(self.run.models.clients() | set(self.run.membership.clients))
