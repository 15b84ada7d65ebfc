"""What a run consists of, and the few things that every round does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import RunError
from fedgsp.messages import (
    Evaluated,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    MemberDone,
    MemberSkipped,
    ModelRef,
    RelayMode,
    Rerouted,
    RunGroupRequest,
    TrainingSettings,
)
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights, total_bytes
from top_server.config import RunConfig
from top_server.grouping import GroupingRequest, Plan
from top_server.journal import Journal
from top_server.manager_pool import Manager, ManagerPool
from top_server.membership import Membership
from top_server.schemes import Scheme

Assign = Callable[[GroupingRequest], Awaitable[Plan]]


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a group did: its result or why there is none, and what its members reported."""

    number: int
    manager: Manager
    result: GroupResult | Failure
    done: tuple[MemberDone, ...]
    skipped: tuple[MemberSkipped, ...]

    @property
    def samples(self) -> int:
        """Training samples behind the group's model."""
        return self.result.samples if isinstance(self.result, GroupResult) else 0

    @property
    def left_out(self) -> set[int]:
        """Clients that are not in the result, some of them because it was lost with their node."""
        return {skipped.client for skipped in self.skipped}

    @property
    def took_part(self) -> set[int]:
        """Clients that are; one that had to train again counts once."""
        return {done.client for done in self.done} - self.left_out


@dataclass(slots=True)
class Run:
    """One run's parts and state; `histograms` and `plan` fill as rounds go by."""

    run_id: str
    config: RunConfig
    scheme: Scheme
    address: str  # where nodes and managers fetch the start model
    membership: Membership
    managers: ManagerPool
    assign: Assign
    store: ModelStore
    journal: Journal
    histograms: dict[int, tuple[int, ...]] = field(default_factory=dict)
    plan: Plan | None = None
    model: ModelRef | None = None

    @property
    def model_bytes(self) -> int:
        """Size of the global model."""
        return self.model.size if self.model else 0

    def keep_model(self, model_id: str, weights: Weights) -> None:
        """Makes these weights the global model, and forgets the one before."""
        if self.model is not None:
            self.store.release([self.model.id])
        self.store.put(model_id, weights)
        self.model = weights.ref(model_id)

    async def run_group(
        self, round_number: int, group: int, program: str, clients: Iterable[int], manager: Manager
    ) -> GroupOutcome:
        """Runs one group on a manager; what its members report goes to the journal as it comes."""
        clients = list(clients)
        members = tuple(member for client in clients if (member := self.membership.member(client)) is not None)
        for node in {member.node for member in members}:
            self.membership.attach(node, manager.contact)
        request = RunGroupRequest(
            run_id=self.run_id,
            round=round_number,
            group=group,
            program=program,
            members=members,
            start=self.model,
            start_address=self.address,
            relay=RelayMode[self.config.relay.upper()],
            shuffle=self.scheme.shuffle,
            training=self._training(),
            stall_timeout_s=self.config.stall_timeout,
            max_model_bytes=_model_bytes(self.membership),
        )
        watcher = _Watcher(self.journal, request)
        for client in sorted(set(clients) - {member.client for member in members}):
            watcher(GroupEvent(MemberSkipped(client, Failure(FailureCode.NODE_LOST, "its node left"))))
        result = await manager.client.run_group(request, watcher)
        if isinstance(result, Failure) and result.code is FailureCode.UNREACHABLE:
            await self.managers.discard(manager)  # it may only be frozen, and would be so in the next round too
        return GroupOutcome(group, manager, result, tuple(watcher.done), tuple(watcher.skipped))

    async def take(self, outcome: GroupOutcome) -> Weights | Failure:
        """A group's model, out of its manager's hands."""
        if isinstance(outcome.result, Failure):
            return outcome.result
        if outcome.result.ref is None or not outcome.result.ref.id:
            return Failure(FailureCode.NO_SUCH_MODEL, "the group ended without a model")
        tensors = self.membership.tensors
        return await outcome.manager.client.take(outcome.result.ref.id, tensors, _model_bytes(self.membership))

    async def survey(self, round_number: int, program: str, clients: Iterable[int]) -> GroupOutcome:
        """Asks clients one question each; once more, on another manager, if the first one is lost meanwhile."""
        clients = list(clients)
        (manager,) = await self.managers.ensure(1)
        outcome = await self.run_group(round_number, 0, program, clients, manager)
        if _manager_lost(outcome):
            (manager,) = await self.managers.ensure(1)
            outcome = await self.run_group(round_number, 0, program, clients, manager)
        return outcome

    async def initialise(self) -> None:
        """The global model of round 0, made on a client's node from the run's seed."""
        clients = list(self.membership.clients)[:3]
        outcome = await self.survey(0, "initialise", clients)
        weights = await self.take(outcome)
        if isinstance(weights, Failure):
            raise RunError(f"no node could make the initial model: {weights}", "see the nodes' logs")
        self.keep_model(f"{self.run_id}/0", weights)

    async def evaluate(self, round_number: int) -> tuple[float, float] | None:
        """Accuracy and loss of the global model on the clients' own test parts, weighted by their samples.

        None, and the reason in the journal, if the clients could not all be asked: part of them would give a figure
        that no other round's can be compared with.
        """
        clients = list(self.membership.clients)
        outcome = await self.survey(round_number, "evaluate", clients)
        results = [done.result for done in sorted(outcome.done, key=lambda done: done.client)]
        counts = [result for result in results if isinstance(result, Evaluated)]
        samples = sum(count.samples for count in counts)
        if len(counts) < len(clients):
            cause = outcome.result if isinstance(outcome.result, Failure) else outcome.skipped[0].failure
            reason = f"{len(clients) - len(counts)} of {len(clients)} clients gave no answer: {cause}"
        elif not samples:
            reason = "no client has test samples"
        else:
            return sum(c.correct for c in counts) / samples, sum(c.loss_sum for c in counts) / samples
        self.journal.record("not_evaluated", round=round_number, reason=reason)
        return None

    def histogram_rows(self, clients: Iterable[int]) -> NDArray[np.int64]:
        """Histograms of these clients, shape (N, classes)."""
        return np.array([self.histograms[client] for client in clients], np.int64)

    def _training(self) -> TrainingSettings:
        config = self.config
        return TrainingSettings(
            self.scheme.training, config.local_epochs, config.batch_size, config.learning_rate, config.seed
        )


def _manager_lost(outcome: GroupOutcome) -> bool:
    return isinstance(outcome.result, Failure) and outcome.result.code is FailureCode.UNREACHABLE


class _Watcher:
    """Notes what a group's members report."""

    def __init__(self, journal: Journal, request: RunGroupRequest) -> None:
        self._journal = journal
        self._where = {"round": request.round, "group": request.group}
        self._program = request.program
        self._members = len(request.members)
        self._trains = request.program in ("relay", "parallel")
        self.done: list[MemberDone] = []
        self.skipped: list[MemberSkipped] = []

    def __call__(self, event: GroupEvent) -> None:
        match event.kind:
            case MemberDone() as done:
                self.done.append(done)
                if self._trains:
                    self._hop(done)
            case MemberSkipped() as skipped:
                self.skipped.append(skipped)
                self._journal.record(
                    "client_skipped",
                    **self._where,
                    program=self._program,
                    client=skipped.client,
                    reason=str(skipped.failure),
                )
            case Rerouted(client, reason):
                self._journal.record("rerouted", **self._where, client=client, reason=reason)

    def _hop(self, done: MemberDone) -> None:
        source = getattr(done.result, "source", None)
        self._journal.record(
            "hop_finished",
            **self._where,
            position=done.position,
            members=self._members,
            client=done.client,
            loss=getattr(done.result, "loss", None),
            seconds=getattr(done.result, "seconds", None),
            via=source.kind.name.lower() if source else None,
        )


def _model_bytes(membership: Membership) -> int:
    return total_bytes(membership.tensors)


async def in_thread(function: Callable[[GroupingRequest], Plan], request: GroupingRequest) -> Plan:
    """A grouping of this process: solved aside, so that streams go on."""
    return await asyncio.to_thread(function, request)
