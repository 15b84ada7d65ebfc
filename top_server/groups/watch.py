"""What a group's members tell while it runs, noted as it comes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from fedgsp.messages import (
    Evaluated,
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    MemberDone,
    MemberSkipped,
    PairsLeft,
    PartLost,
    Rerouted,
    Results,
    RunGroupRequest,
    Trained,
)
from fedgsp.weights import Weights
from top_server.groups.task import TRAINS, Trace
from top_server.managers.pool import Manager

if TYPE_CHECKING:
    from top_server.run import Run

#: What only a client that is broken, or means harm, hands on.
OFFENCES = (
    FailureCode.TOO_LONG,
    FailureCode.WRONG_DIGEST,
    FailureCode.WRONG_SHAPES,
    FailureCode.NOT_FINITE,
    FailureCode.BAD_STREAM,
    FailureCode.LONG_UPDATE,
)


class GroupWatch:
    """Notes what a group's members report, and takes what they reveal or hand over as they do."""

    def __init__(
        self,
        run: Run,
        request: RunGroupRequest,
        manager: Manager,
        trace: Trace,
        groups_of_one: Mapping[int, int] | None = None,
    ) -> None:
        self._run = run
        self._manager = manager
        self._round, self._group = request.round, request.group
        self._groups_of_one = groups_of_one or {}
        self._program = request.program
        self._planned = len(request.planned)
        self._members = {member.client: member for member in request.members}
        self._collects = request.program == "collect" or request.results is Results.COLLECTED
        self._reveals = request.reveal is not None
        self._most = request.discrimination.exchanges if request.discrimination is not None else 0
        self._taking: list[asyncio.Task[None]] = []
        self.done: list[MemberDone] = []
        self.hops: list[FinishedHop] = list(trace.finished)
        self.skipped: list[MemberSkipped] = list(trace.skipped)
        self.lost: dict[int, Failure] = {}
        self.models: dict[int, Weights | Failure] = {}

    def __call__(self, event: GroupEvent) -> None:
        """Takes what the group's manager told, in order."""
        match event.kind:
            case MemberDone() as done if done.client in self._members:
                self.done.append(done)
                if self._collects and isinstance(done.result, Trained) and done.result.ref is not None:
                    self._take(self._take_model(done.client, done.result.ref.id), done.client)
                if self._program in TRAINS and isinstance(done.result, Trained):
                    self._hop(done, done.result)
                if isinstance(done.result, Evaluated) and done.result.afresh:
                    self._run.note_missing(done.client, self._round)
            case MemberSkipped() as skipped:
                self.skipped.append(skipped)
                if skipped.failure is not None and skipped.failure.code in OFFENCES:
                    self._run.membership.note_offence(skipped.client)
                self.hops = [hop for hop in self.hops if hop.member and hop.member.client != skipped.client]
                self._run.journal.record(
                    "client_skipped",
                    **self._where(skipped.client),
                    program=self._program,
                    client=skipped.client,
                    code=skipped.failure.code.name if skipped.failure is not None else None,
                    reason=str(skipped.failure),
                )
            case PartLost(client, failure):
                self.lost[client] = failure or Failure(FailureCode.NO_SUCH_MODEL, "no reason was given")
            case PairsLeft(exchanges, left, pairs):
                told = {"exchanges": exchanges, "most": self._most, "left": left, "pairs": pairs}
                self._run.journal.record("discriminators", **told)
            case Rerouted(client, reason):
                self._run.journal.record("rerouted", **self._where(client), client=client, reason=reason)

    async def all_taken(self) -> None:
        """Waits for what is on its way here."""
        await asyncio.gather(*self._taking)

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        for task in self._taking:
            task.cancel()

    def _where(self, client: int) -> dict[str, int]:
        return {"round": self._round, "group": self._groups_of_one.get(client, self._group)}

    def _take(self, taking: Coroutine[Any, Any, None], client: int) -> None:
        self._taking.append(asyncio.create_task(taking, name=f"take from client {client}"))

    async def _take_model(self, client: int, model_id: str) -> None:
        self.models[client] = await self._run.take_model(self._manager, model_id)

    def _hop(self, done: MemberDone, trained: Trained) -> None:
        if self._program == "relay":
            member = dataclasses.replace(self._members[done.client], samples=trained.samples)
            # One that trains again takes its place in the trail once more: what came after is gone.
            self.hops[done.position :] = [FinishedHop(member, trained.ref, done.update_length)]
        if trained.keeps:
            self._run.note_kept(done.client, self._round, trained.afresh)
        if trained.update is not None:
            self._take(self._run.take_update(done.client, trained.update.id, self._manager), done.client)
        elif self._reveals:
            reason = "it did not come to the group manager"
            self._run.journal.record("update_missing", client=done.client, reason=reason)
        alone = done.client in self._groups_of_one
        self._run.journal.record(
            "hop_finished",
            **self._where(done.client),
            program=self._program,
            position=0 if alone else done.position,
            members=1 if alone else self._planned,
            client=done.client,
            loss=trained.loss,
            seconds=trained.seconds,
            samples=trained.samples,
            update_length=done.update_length,
            bytes=trained.bytes,
            model=trained.ref.id if trained.ref is not None else None,
            node=self._members[done.client].node,
            via=trained.source.kind.name.lower() if trained.source else None,
        )
