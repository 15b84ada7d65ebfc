"""Parallel: all members train from the same start, and their models are aggregated (FedAvg, FedNova, median, ...)."""

from __future__ import annotations

import asyncio
import logging

from fedgsp.messages import Failure, FailureCode, GroupResult, Member, Results, Trained
from fedgsp.weights import Weights
from group_manager.aggregations import Aggregation, named
from group_manager.group import Group
from group_manager.norms import Norms
from group_manager.programs.window import train_all

logger = logging.getLogger(__name__)


async def run(group: Group) -> GroupResult | Failure:
    """Folds the members' models in the order of the members, so that the result has the same bits whoever is first."""
    request = group.request
    try:
        intake = _Intake(group, named(request.aggregation))
    except ValueError as error:
        return Failure(FailureCode.BAD_ORDER, str(error))
    norms = Norms(group) if request.most_update_ratio else None
    try:
        async for position, member, model_id, outcome in train_all(group, intake.retain, bring=True):
            model = None
            if isinstance(outcome, Trained) and member.weight > 0:
                collected = await _collect(group, norms, model_id)
                if isinstance(collected, Failure):
                    outcome = collected
                else:
                    model = collected
            length = norms.last if norms is not None and model is not None else 0.0
            await intake.take(position, member, model_id, outcome, model, length)
        await intake.all_taken()
    finally:
        intake.cancel()
    nobody_counts = intake.aggregation.empty
    if nobody_counts and not intake.uncounted:
        return Failure(intake.reason.code, f"no member trained; the last reason: {intake.reason.detail}")
    start: Weights | Failure | None = None
    if nobody_counts or intake.aggregation.needs_start:
        assert request.start is not None
        start = await group.collect(request.start.id)
    if isinstance(start, Failure):
        return start
    if nobody_counts:
        assert start is not None
        result, samples = start, intake.uncounted
        logger.warning("round=%d group=%d nobody who counts trained: its model stays", request.round, request.group)
    else:
        result, samples = await asyncio.to_thread(_result, group, intake.aggregation, start), intake.samples
    ref = group.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result)
    return GroupResult(ref, samples, group.bytes_direct, group.bytes_relayed)


async def _collect(group: Group, norms: Norms | None, model_id: str) -> Weights | Failure:
    refused = await norms.refuse(None, model_id) if norms else None
    return refused or await group.collect(model_id, group.request.tensors)


class _Intake:
    """Takes one member in after the other, each while the next one's model is on its way."""

    def __init__(self, group: Group, aggregation: Aggregation) -> None:
        self._group = group
        self._taking: asyncio.Task[None] | None = None
        self.aggregation = aggregation
        self.retain = group.request.results is Results.RETAINED
        #: Training samples of the members that count, and of those without weight.
        self.samples = self.uncounted = 0
        self.reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")

    async def take(
        self,
        position: int,
        member: Member,
        model_id: str,
        outcome: Trained | Failure,
        model: Weights | None,
        length: float,
    ) -> None:
        """Begins with a member, once the one before is done with; a model of None does not count."""
        await self.all_taken()
        if isinstance(outcome, Failure):
            self._skip(member, model_id, outcome)
        else:
            self._taking = asyncio.create_task(self._take(position, member, model_id, outcome, model, length))

    async def all_taken(self) -> None:
        """Waits for the member that was begun with last."""
        if self._taking is not None:
            await self._taking

    def cancel(self) -> None:
        """Nobody needs the aggregate any more."""
        if self._taking is not None:
            self._taking.cancel()

    async def _take(
        self, position: int, member: Member, model_id: str, trained: Trained, model: Weights | None, length: float
    ) -> None:
        group = self._group
        if model is None:
            self.uncounted += trained.samples
        else:
            try:
                await asyncio.to_thread(self.aggregation.fold, model, member.weight, trained.steps)
            except ValueError as error:
                self._skip(member, model_id, Failure(FailureCode.WRONG_SHAPES, str(error)))
                return
            self.samples += trained.samples
        group.done(member, position, await group.with_update(trained), length)
        if self.retain:
            group.leave_with_client(model_id)
        group.release([model_id])

    def _skip(self, member: Member, model_id: str, failure: Failure) -> None:
        self.reason = failure
        self._group.give_up(model_id)
        self._group.skipped(member, failure)


def _result(group: Group, aggregation: Aggregation, start: Weights | None) -> Weights:
    result = group.handed_on(aggregation.result(start))
    _ = result.digest  # here and not in the event loop
    return result
