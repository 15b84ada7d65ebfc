"""Parallel: all members train from the same start, and their models are aggregated (FedAvg, FedNova, median, ...)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import UserError
from fedgsp.messages import Failure, FailureCode, GroupResult, Results, Trained
from fedgsp.weights import Weights
from group_manager.aggregations import Aggregation, make
from group_manager.group import Group
from group_manager.norms import Judged, judged
from group_manager.programs.window import train_all

logger = logging.getLogger(__name__)


async def run(group: Group) -> GroupResult | Failure:
    """Folds the members' models in the order of the members, so that the result has the same bits whoever is first."""
    request = group.request
    try:
        intake = _Intake(group, make(request.aggregation, request.aggregation_options))
    except UserError as error:
        return Failure(FailureCode.BAD_ORDER, str(error))
    try:
        async for one in judged(group, train_all(group, intake.retain, bring=True)):
            outcome, model = one.outcome, None
            if isinstance(outcome, Trained) and one.member.weight > 0:
                collected = await group.collect(one.model_id, request.tensors)
                if isinstance(collected, Failure):
                    outcome = collected
                else:
                    model = collected
            await intake.take(replace(one, outcome=outcome), model)
        await intake.all_taken()
    finally:
        intake.cancel()
    nobody_counts = intake.aggregation.empty
    if nobody_counts and not intake.uncounted:
        return Failure(intake.reason.code, f"no member trained; the last reason: {intake.reason.detail}")
    start: Weights | Failure | None = None
    if nobody_counts or intake.part.needs_start:
        assert request.start is not None
        start = await group.collect(request.start.id)
    if isinstance(start, Failure):
        return start
    if nobody_counts:
        assert start is not None
        result, samples = start, intake.uncounted
        logger.warning("round=%d group=%d nobody who counts trained: its model stays", request.round, request.group)
    else:
        result, samples = await asyncio.to_thread(intake.result, start), intake.samples
    ref = group.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result)
    return GroupResult(ref, samples, group.bytes_direct, group.bytes_relayed)


class _Intake:
    """Takes one member in after the other, each while the next one's model is on its way."""

    def __init__(self, group: Group, aggregation: Aggregation) -> None:
        self._group = group
        self._taking: asyncio.Task[None] | None = None
        self.aggregation = aggregation
        self.part = AGGREGATIONS[group.request.aggregation or "mean"]
        self.retain = group.request.results is Results.RETAINED
        #: Training samples of the members that count, and of those without weight.
        self.samples = self.uncounted = 0
        self.reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")

    async def take(self, one: Judged, model: Weights | None) -> None:
        """Begins with a member, once the one before is done with; a model of None does not count."""
        await self.all_taken()
        if isinstance(one.outcome, Failure):
            self._skip(one, one.outcome)
        else:
            self._taking = asyncio.create_task(self._take(one, one.outcome, model))

    async def all_taken(self) -> None:
        """Waits for the member that was begun with last."""
        if self._taking is not None:
            await self._taking

    def cancel(self) -> None:
        """Nobody needs the aggregate any more."""
        if self._taking is not None:
            self._taking.cancel()

    async def _take(self, one: Judged, trained: Trained, model: Weights | None) -> None:
        group = self._group
        if model is None:
            self.uncounted += trained.samples
        else:
            try:
                await asyncio.to_thread(self._fold, model, one.member.weight, trained.steps)
            except ValueError as error:
                self._skip(one, Failure(FailureCode.WRONG_SHAPES, str(error)))
                return
            self.samples += trained.samples
        group.done(one.member, one.position, await group.with_update(trained), one.length or 0.0)
        if self.retain:
            group.leave_with_client(one.model_id)
        group.release([one.model_id])

    def _fold(self, model: Weights, weight: float, steps: float) -> None:
        with self.part.guard(ValueError):
            self.aggregation.fold(model, weight, steps)

    def result(self, start: Weights | None) -> Weights:
        """The group's model, as it travels."""
        with self.part.guard():
            result = self._group.handed_on(self.aggregation.result(start))
        _ = result.digest  # here and not in the event loop
        return result

    def _skip(self, one: Judged, failure: Failure) -> None:
        self.reason = failure
        self._group.give_up(one.model_id)
        self._group.skipped(one.member, failure)
