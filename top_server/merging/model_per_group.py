"""No merge across groups: every client has the model of the group that it last trained in (HCCT, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from fedgsp.messages import Failure, FailureCode, ModelRef, Results
from top_server.merging.base import Merging, Starts
from top_server.models import INITIAL, Held, client_slot

if TYPE_CHECKING:
    from top_server.group_run import GroupOutcome


class ModelPerGroup(Merging):
    """A group starts from the mean of its members' models, weighted by samples; one alone keeps its model at home."""

    alone: ClassVar[Results | None] = Results.RETAINED

    def start(self, group: Iterable[int]) -> Starts:
        """A model that several members share counts once, with the samples of all of them."""
        weights: dict[ModelRef, tuple[Held, float]] = {}
        for client in group:
            member = self.run.membership.member(client)
            if member is not None:
                held = self.of(client)
                weights[held.ref] = (held, weights.get(held.ref, (held, 0.0))[1] + member.samples)
        return tuple(weights.values())

    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """Those who took part have the group's model now; the others keep theirs."""
        self.note_lost(outcome)
        if outcome.task.program == "alone":
            held = {client_slot(client): model for client, model in outcome.own_models.items()}
            self.run.models.point(held)
            return outcome.result if isinstance(outcome.result, Failure) and not held else None
        weights = await self.run.take(outcome)
        if isinstance(weights, Failure):
            return weights
        model_id = self.group_model_id(round_number, outcome.task.number)
        self.run.models.put(map(client_slot, sorted(outcome.took_part)), model_id, weights)
        return None

    def note_lost(self, outcome: GroupOutcome) -> None:
        """A model that its node lost is lost: its client is a newcomer again, unless its group gave it another."""
        gone = {
            skipped.client
            for skipped in outcome.skipped
            if skipped.client in outcome.task.own_starts
            and skipped.failure is not None
            and skipped.failure.code is FailureCode.NO_SUCH_MODEL
        }
        for client in sorted(gone | outcome.lost):
            if self.of(client).client == client:
                self.run.models.drop(client_slot(client))
                self.afresh.add(client)
                self.run.journal.record("model_lost", client=client, reason="its node has it no more")

    def of(self, client: int) -> Held:
        """Its own or its group's; the initial model for one that has not trained yet."""
        slot = client_slot(client)
        return self.run.models[slot if slot in self.run.models else INITIAL]

    def welcome(self, clients: Iterable[int], held: Held) -> None:
        """Gives newcomers a model to start from."""
        self.run.models.point({client_slot(client): held for client in clients})

    def clients(self) -> Iterable[int]:
        """Those that trained, and those that are there."""
        return sorted(self.run.models.clients() | set(self.run.membership.clients))
