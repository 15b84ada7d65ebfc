"""One group on one manager: what it is asked, and what comes of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedgsp.encoding import BFLOAT16
from fedgsp.messages import (
    Discrimination,
    Evaluated,
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    PairsLeft,
    Part,
    PartLost,
    RelayMode,
    Rerouted,
    Results,
    Reveal,
    RunGroupRequest,
    Trained,
    TrainingSettings,
)
from fedgsp.weights import Weights, total_bytes
from top_server.manager_pool import Manager
from top_server.models import Held
from top_server.moved import Moved

if TYPE_CHECKING:
    from top_server.run import Run

#: Programs in which members train.
TRAINS = ("relay", "parallel", "alone")
#: What only a client that is broken, or means harm, hands on.
OFFENCES = (
    FailureCode.TOO_LONG,
    FailureCode.WRONG_DIGEST,
    FailureCode.WRONG_SHAPES,
    FailureCode.NOT_FINITE,
    FailureCode.BAD_STREAM,
    FailureCode.LONG_UPDATE,
)
#: Why a group fails whose nodes, or whose manager, are lost; what it did can be tried again.
LOST = {FailureCode.NODE_LOST, FailureCode.UNREACHABLE, FailureCode.STALLED, FailureCode.CUT_SHORT}
#: Managers that a group is tried on before it is given up.
MOST_MANAGERS = 4
#: How often a round, or the making of a model, is tried whose nodes are lost.
MOST_TRIES = 5


def first_attempt(times: int) -> int:
    """Where a run that was resumed so often counts attempts at groups from: what it makes then has other ids."""
    return times * MOST_TRIES * MOST_MANAGERS


@dataclass(frozen=True, slots=True)
class GroupTask:
    """What one group is asked to do."""

    number: int
    program: str
    clients: tuple[int, ...]
    #: The models that the group's start is the mean of, with their weights; one alone is the start itself.
    starts: tuple[tuple[Held, float], ...] = ()
    #: Starts of single members, in place of the group's.
    own_starts: Mapping[int, Held] = field(default_factory=dict)
    #: How members count in the group's mean; by their training samples unless given.
    weights: Mapping[int, float] = field(default_factory=dict)
    results: Results = Results.UNSPECIFIED
    reveal: Reveal | None = None
    local_epochs: int | None = None
    #: In place of the scheme's training, with its options.
    training: str | None = None
    discrimination: Discrimination | None = None
    #: The largest model that the manager may take from a node, if larger than the task's.
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of a group's part of a round when a manager begins with it: nothing, but after a loss."""

    #: Managers that were lost with it.
    attempt: int = 0
    #: Hops of a relay, in order; whether their models are still there their nodes say.
    finished: tuple[FinishedHop, ...] = ()
    #: Members that were skipped: they would train out of their turn.
    skipped: tuple[MemberSkipped, ...] = ()
    #: By members of those managers.
    moved: Moved = field(default_factory=Moved)

    @property
    def clients(self) -> set[int]:
        """Those of whom nothing more is asked, unless their results are lost."""
        left_out = {skipped.client for skipped in self.skipped}
        return left_out | {hop.member.client for hop in self.finished if hop.member is not None}

    def after(self, outcome: GroupOutcome) -> Trace:
        """What the next manager is told, if the one of this outcome was lost."""
        skipped = outcome.skipped if outcome.task.program in TRAINS else ()
        return Trace(self.attempt + 1, outcome.hops, skipped, outcome.moved)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a group did: its result or why there is none, and what its members reported."""

    task: GroupTask
    manager: Manager
    result: GroupResult | Failure
    done: tuple[MemberDone, ...]
    skipped: tuple[MemberSkipped, ...]
    #: Clients whose models are lost, and so had no part in the group's start.
    lost: frozenset[int] = frozenset()
    #: Members' own models, where these are collected, or why one could not be had.
    models: Mapping[int, Weights | Failure] = field(default_factory=dict)
    #: The hops of a relay behind its result, or so far.
    hops: tuple[FinishedHop, ...] = ()
    #: What was known when its manager began.
    trace: Trace = field(default_factory=Trace)

    @property
    def samples(self) -> int:
        """Training samples behind the group's model."""
        return self.result.samples if isinstance(self.result, GroupResult) else 0

    @property
    def moved(self) -> Moved:
        """Bytes of weights, those under managers that were lost included."""
        if isinstance(self.result, GroupResult):
            return self.trace.moved + Moved.as_told(self.result)
        return self.trace.moved + Moved.by(done.result for done in self.done if done.result is not None)

    @property
    def left_out(self) -> set[int]:
        """Clients that are not in the result, some of them because it was lost with their node."""
        return {skipped.client for skipped in self.skipped}

    @property
    def failures(self) -> list[Failure | None]:
        """Why there is no result, and why members took no part."""
        why = [self.result] if isinstance(self.result, Failure) else []
        return [*why, *(skipped.failure for skipped in self.skipped)]

    @property
    def took_part(self) -> set[int]:
        """Clients that are; one that had to train again counts once."""
        before = {hop.member.client for hop in self.hops if hop.member is not None}
        return (before | {done.client for done in self.done}) - self.left_out

    @property
    def update_lengths(self) -> list[float]:
        """Of the updates behind the result that were looked at, in order."""
        lengths = {hop.member.client: hop.update_length for hop in self.hops if hop.member is not None}
        lengths |= {done.client: done.update_length for done in self.done}
        return [found for client, found in sorted(lengths.items()) if found and client in self.took_part]

    @property
    def own_models(self) -> dict[int, Held]:
        """What the members trained, where it stays with them."""
        return {
            done.client: Held(done.result.ref, done.client)
            for done in self.done
            if isinstance(done.result, Trained) and done.result.ref is not None
        }

    @property
    def manager_lost(self) -> bool:
        """Whether the manager, not the group, is why there is no result."""
        return isinstance(self.result, Failure) and self.result.code is FailureCode.UNREACHABLE


async def run_group(run: Run, round_number: int, task: GroupTask, manager: Manager, trace: Trace) -> GroupOutcome:
    """Runs one group, on others if its manager is lost; what its members report goes to the journal as it comes.

    A relay that began before, under a manager that is gone, goes on from what its trace says.
    """
    while True:
        outcome = await _on(run, round_number, task, manager, trace)
        if not outcome.manager_lost:
            return outcome
        if trace.attempt % MOST_MANAGERS == MOST_MANAGERS - 1:
            await run.managers.discard(manager)
            return outcome
        manager = await run.managers.replace(manager)
        trace = run.shown(task, trace.after(outcome))
        where = {"round": round_number, "group": task.number, "program": task.program}
        run.journal.record("group_resumed", **where, manager=manager.name, finished=len(trace.finished))


async def _on(run: Run, round_number: int, task: GroupTask, manager: Manager, trace: Trace) -> GroupOutcome:
    members, absent = [], []
    left_out = {skipped.client for skipped in trace.skipped}
    for client in task.clients:
        if client in left_out:
            continue
        member = _member(run, task, client)
        if member is not None:
            members.append(member)
        elif client not in trace.clients:
            absent.append(client)
    for node in {member.node for member in members}:
        run.membership.attach(node, manager.contact)
    request = _request(run, round_number, task, tuple(members), trace)
    watcher = _Watcher(run, request, manager, trace)
    for client in absent:
        watcher(GroupEvent(MemberSkipped(client, Failure(FailureCode.NODE_LOST, "its node left"))))
    try:
        result = await manager.client.run_group(request, watcher)
        await watcher.all_taken()
    finally:
        watcher.cancel()
    return GroupOutcome(
        task,
        manager,
        result,
        tuple(watcher.done),
        tuple(watcher.skipped),
        frozenset(watcher.lost),
        watcher.models,
        tuple(watcher.hops),
        trace,
    )


def _member(run: Run, task: GroupTask, client: int) -> Member | None:
    member = run.membership.member(client)
    if member is None:
        return None
    start = _part(run, task.own_starts[client]) if client in task.own_starts else None
    weight = task.weights.get(client, float(member.samples))
    return Member(member.client, member.node, member.peer_address, member.samples, start, weight)


def _part(run: Run, held: Held, weight: float = 0.0) -> Part:
    """How a manager is told of a model: by the node where its client is now."""
    if held.client is None:
        return Part(held.ref, "", weight)
    member = run.membership.member(held.client)
    # A node that left cannot be asked; its name makes the manager say so.
    return Part(held.ref, member.node if member else f"of client {held.client}", weight, held.client)


def _request(
    run: Run, round_number: int, task: GroupTask, members: tuple[Member, ...], trace: Trace
) -> RunGroupRequest:
    config = run.config
    parts: tuple[Part, ...] = ()
    start = None
    if len(task.starts) == 1 and task.starts[0][0].client is None:
        start = task.starts[0][0].ref
    elif task.starts:
        parts = tuple(_part(run, held, weight) for held, weight in task.starts)
        start = ModelRef(f"{run.run_id}/{round_number}/{task.number}/{task.program}-start")
    return RunGroupRequest(
        run_id=run.run_id,
        round=round_number,
        group=task.number,
        program=task.program,
        members=members,
        start=start,
        start_address=run.address,
        relay=RelayMode[config.relay.upper()],
        shuffle=run.scheme.shuffle,
        training=TrainingSettings(
            task.training or run.scheme.training,
            task.local_epochs or config.local_epochs,
            config.batch_size,
            config.learning_rate_in(round_number),
            config.seed,
            {} if task.training else config.training_option,
            config.wire_dtype == BFLOAT16,
        ),
        stall_timeout_s=config.stall_timeout,
        max_model_bytes=max(
            total_bytes(run.membership.tensors), run.updates.max_bytes if run.updates else 0, task.max_bytes
        ),
        parts=parts,
        personal=run.scheme.personal,
        reveal=task.reveal,
        results=task.results,
        aggregation=run.aggregation,
        discrimination=task.discrimination,
        planned=task.clients,
        attempt=trace.attempt,
        finished=trace.finished,
        tensors=run.tensors,
        most_update_ratio=config.update_norm_limit or 0.0,
        serial=next(run.serials),
        update_lengths=tuple(run.update_lengths) if config.update_norm_limit else (),
    )


class _Watcher:
    """Notes what a group's members report, and takes what they reveal or hand over as they do."""

    def __init__(self, run: Run, request: RunGroupRequest, manager: Manager, trace: Trace) -> None:
        self._run = run
        self._manager = manager
        self._where = {"round": request.round, "group": request.group}
        self._program = request.program
        self._planned = len(request.planned)
        self._members = {member.client: member for member in request.members}
        self._collects = request.program == "collect" or request.results is Results.COLLECTED
        self._reveals = request.reveal is not None
        self._most = request.discrimination.rounds if request.discrimination is not None else 0
        self._taking: list[asyncio.Task[None]] = []
        self.done: list[MemberDone] = []
        self.hops: list[FinishedHop] = list(trace.finished)
        self.skipped: list[MemberSkipped] = list(trace.skipped)
        self.lost: set[int] = set()
        self.models: dict[int, Weights | Failure] = {}

    def __call__(self, event: GroupEvent) -> None:
        match event.kind:
            case MemberDone() as done if done.client in self._members:
                self.done.append(done)
                if self._collects and isinstance(done.result, Trained) and done.result.ref is not None:
                    self._take(self._take_model(done.client, done.result.ref.id), done.client)
                if self._program in TRAINS and isinstance(done.result, Trained):
                    self._hop(done, done.result)
                if isinstance(done.result, Evaluated) and done.result.afresh:
                    self._run.note_missing(done.client, self._where["round"])
            case MemberSkipped() as skipped:
                self.skipped.append(skipped)
                if skipped.failure is not None and skipped.failure.code in OFFENCES:
                    self._run.membership.note_offence(skipped.client)
                self.hops = [hop for hop in self.hops if hop.member and hop.member.client != skipped.client]
                self._run.journal.record(
                    "client_skipped",
                    **self._where,
                    program=self._program,
                    client=skipped.client,
                    code=skipped.failure.code.name if skipped.failure is not None else None,
                    reason=str(skipped.failure),
                )
            case PartLost(client, _):
                self.lost.add(client)
            case PairsLeft(exchanges, left, pairs):
                told = {"exchanges": exchanges, "most": self._most, "left": left, "pairs": pairs}
                self._run.journal.record("discriminators", **told)
            case Rerouted(client, reason):
                self._run.journal.record("rerouted", **self._where, client=client, reason=reason)

    async def all_taken(self) -> None:
        """Waits for what is on its way here."""
        await asyncio.gather(*self._taking)

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        for task in self._taking:
            task.cancel()

    def _take(self, taking: Coroutine[Any, Any, None], client: int) -> None:
        self._taking.append(asyncio.create_task(taking, name=f"take from client {client}"))

    async def _take_model(self, client: int, model_id: str) -> None:
        self.models[client] = await self._run.take_model(self._manager, model_id)

    def _hop(self, done: MemberDone, trained: Trained) -> None:
        if self._program == "relay" and done.client in self._members:
            member = dataclasses.replace(self._members[done.client], samples=trained.samples)
            # One that trains again takes its place in the trail once more: what came after is gone.
            self.hops[done.position :] = [FinishedHop(member, trained.ref, done.update_length)]
        if trained.keeps:
            self._run.note_kept(done.client, self._where["round"], trained.afresh)
        if trained.update is not None:
            self._take(self._run.take_update(done.client, trained.update.id, self._manager), done.client)
        elif self._reveals:
            reason = "it did not come to the group manager"
            self._run.journal.record("update_missing", client=done.client, reason=reason)
        self._run.journal.record(
            "hop_finished",
            **self._where,
            program=self._program,
            position=done.position,
            members=self._planned,
            client=done.client,
            loss=trained.loss,
            seconds=trained.seconds,
            samples=trained.samples,
            update_length=done.update_length,
            bytes=trained.bytes,
            model=trained.ref.id if trained.ref is not None else None,
            node=self._members[done.client].node if done.client in self._members else None,
            via=trained.source.kind.name.lower() if trained.source else None,
        )
