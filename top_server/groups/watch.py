"""Notes what the members of a group report while it runs, and takes their models and updates."""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from fedgsp.discriminators import ESTIMATES
from fedgsp.messages import (
    Evaluated,
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    GroupResult,
    MemberDone,
    MemberSkipped,
    ModelRef,
    NetworksLeft,
    PartLost,
    Rerouted,
    Results,
    RunGroupRequest,
    Served,
    Trained,
)
from fedgsp.programs import PROGRAMS
from fedgsp.scoring import is_figure
from fedgsp.tensors.weights import Weights
from top_server.groups.receipts import GroupAudit
from top_server.groups.taking import noted, take_model
from top_server.groups.task import Trace
from top_server.managers.client import BrokenOff, or_reason
from top_server.managers.pool import Manager
from top_server.progress import Progress
from top_server.record.events import rounds
from top_server.record.events.base import ABSENT
from top_server.record.events.evidence import Discriminators
from top_server.reveals.updates import Reveals
from top_server.run import RunContext

#: Failures that only a broken or malicious client causes.
OFFENCES = (
    FailureCode.TOO_LONG,
    FailureCode.WRONG_DIGEST,
    FailureCode.WRONG_SHAPES,
    FailureCode.NOT_FINITE,
    FailureCode.BAD_STREAM,
    FailureCode.LONG_UPDATE,
    FailureCode.BAD_RECEIPT,
)


def hops_without(client: int, hops: Iterable[FinishedHop]) -> list[FinishedHop]:
    """The hops of a relay that still count when this client is skipped: hops after its own came from its model."""
    return list(itertools.takewhile(lambda hop: hop.member is not None and hop.member.client != client, hops))


class GroupWatch:
    """Notes the reports of a group's members, and takes the updates and models that they reveal or hand over."""

    def __init__(
        self,
        context: RunContext,
        progress: Progress,
        request: RunGroupRequest,
        manager: Manager,
        trace: Trace,
        reveals: Reveals | None = None,
        groups_of_one: Mapping[int, int] | None = None,
    ) -> None:
        self._context = context
        self._progress = progress
        self._request = request
        self._manager = manager
        self._reveals = reveals
        self._groups_of_one = groups_of_one or {}
        self._program = PROGRAMS[request.program]
        self._members = {member.client: member for member in request.members}
        #: The clients of the group, present or not.
        self._clients = self._members.keys() | set(request.planned)
        #: The clients from whose models the group starts.
        self._parts = {part.client for part in request.parts}
        self._taking: list[asyncio.Task[None]] = []
        self.done: list[MemberDone] = []
        self.hops: list[FinishedHop] = list(trace.finished)
        self.skipped: list[MemberSkipped] = list(trace.skipped)
        self.lost: dict[int, Failure] = {}
        self.models: dict[int, Weights | Failure] = {}
        #: Why the manager does not give a model that a member has handed over.
        self.not_given: BrokenOff | None = None
        self._audit = GroupAudit(context, request, manager.name)
        self._audit.ordered()
        #: Why the group has no result, although its manager may tell of one.
        self.refused: Failure | None = None

    def __call__(self, event: GroupEvent) -> None:
        """Notes one event; the manager tells them in order. What it says of clients of other groups does not count."""
        match event.kind:
            case MemberDone() as done if done.client in self._members:
                if refused := self._audit.done(done):
                    self.refused = self.refused or refused
                    return
                self.done.append(done)
                if isinstance(done.result, Trained):
                    self._note_trained(done, done.result)
                lost = isinstance(done.result, Evaluated) and done.result.afresh
                if lost and self._progress.note_missing(done.client):
                    self._record_missing(done.client)
            case MemberSkipped() as skipped if skipped.client in self._clients:
                self._audit.skipped(skipped)
                self.skipped.append(skipped)
                if skipped.failure is not None and skipped.failure.code in OFFENCES:
                    self._context.membership.note_offence(skipped.client)
                self.hops = hops_without(skipped.client, self.hops)
                self._context.journal.record(
                    rounds.ClientSkipped(
                        **self._where(skipped.client),
                        program=self._program.name,
                        client=skipped.client,
                        node=member.node if (member := self._members.get(skipped.client)) else ABSENT,
                        code=skipped.failure.code.name if skipped.failure is not None else None,
                        reason=str(skipped.failure),
                    )
                )
            case PartLost(client, failure) if client in self._parts:
                self.lost[client] = failure or Failure(FailureCode.NO_SUCH_MODEL, "no reason was given")
            case NetworksLeft(exchanges, left, networks):
                plan = self._request.discrimination
                most = plan.exchanges * ESTIMATES[plan.estimate].folds if plan is not None else 0
                told = {"exchanges": exchanges, "most": most, "left": left, "networks": networks}
                self._context.journal.record(Discriminators(**told))
            case Served() as served:
                self._audit.served(served)
            case Rerouted(client, reason) if client in self._clients:
                self._context.journal.record(rounds.Rerouted(**self._where(client), client=client, reason=reason))

    async def all_taken(self) -> None:
        """Waits for the models and updates that are on their way here."""
        await asyncio.gather(*self._taking)

    def skip_missing(self) -> None:
        """Skips the members whose models did not come here: no result has their training."""
        for client, model in sorted(self.models.items()):
            if isinstance(model, Failure):
                # Not with its code, which may be that of an offence: the member has handed over a good model.
                failure = Failure(FailureCode.UNREACHABLE, f"its model did not come to the top server: {model}")
                self(GroupEvent(MemberSkipped(client, failure)))

    def ended(self, result: GroupResult | Failure) -> GroupResult | Failure:
        """What counts as the result of the group."""
        result = self.refused or self._audit.too_many(result) or result
        self._audit.ended(result)
        return result

    def cancel(self) -> None:
        """Gives up the models and updates that are on their way here."""
        for task in self._taking:
            task.cancel()

    def _where(self, client: int) -> dict[str, int]:
        return {"round": self._request.round, "group": self._groups_of_one.get(client, self._request.group)}

    def _take(self, taking: Coroutine[Any, Any, None], client: int) -> None:
        self._taking.append(asyncio.create_task(taking, name=f"take from client {client}"))

    async def _take_model(self, client: int, ref: ModelRef) -> None:
        taken = await take_model(self._context, self._manager, ref)
        if isinstance(taken, BrokenOff):
            self.not_given = max(self.not_given or taken, taken, key=lambda one: one.lost)
        self.models[client] = or_reason(taken)

    async def _take_update(self, reveals: Reveals, client: int, ref: ModelRef) -> None:
        taken = await self._manager.client.take(ref, None, reveals.max_bytes)
        shown = noted(self._context, self._manager, ref, taken)
        if problem := await reveals.take(client, or_reason(shown)):
            self._context.journal.record(rounds.UpdateMissing(client=client, reason=problem))

    def _record_missing(self, client: int) -> None:
        self._context.journal.record(
            rounds.ModelLost(
                round=self._request.round,
                client=client,
                reason="what it keeps to itself is not on its node any more",
            )
        )

    def _note_trained(self, done: MemberDone, trained: Trained) -> None:
        if self._request.results is Results.COLLECTED and trained.ref is not None:
            self._take(self._take_model(done.client, trained.ref), done.client)
        if not self._program.trains:
            return
        if self._program.chained:
            member = dataclasses.replace(self._members[done.client], samples=trained.samples)
            # A member that trains again takes its place once more: the hops after it are lost.
            self.hops[done.position :] = [FinishedHop(member, trained.ref, done.update_length)]
        if trained.keeps and self._progress.note_kept(done.client, self._request.round, trained.afresh):
            self._record_missing(done.client)
        if trained.update is not None and self._reveals is not None:
            self._take(self._take_update(self._reveals, done.client, trained.update), done.client)
        elif trained.update is None and self._request.reveal is not None:
            self._context.journal.record(
                rounds.UpdateMissing(client=done.client, reason="it did not come to the group manager")
            )
        alone, source = done.client in self._groups_of_one, trained.source
        self._context.journal.record(
            rounds.HopFinished(
                **self._where(done.client),
                program=self._program.name,
                position=0 if alone else done.position,
                members=1 if alone else len(self._request.planned),
                client=done.client,
                loss=trained.loss if is_figure(trained.loss) else math.nan,  # null in the record
                seconds=trained.seconds,
                turn=done.turn_s if self._program.chained else ABSENT,
                samples=trained.samples,
                update_length=done.update_length,
                bytes=trained.bytes,
                travelled=source.travelled if source is not None else 0,
                coding=source.coding if source is not None else "",
                model=trained.ref.id if trained.ref is not None else None,
                node=self._members[done.client].node,
                via=source.kind.name.lower() if source is not None else None,
            )
        )
