"""Parallel: all members train from the same start, and an aggregation makes one model of theirs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from fedgsp.messages import Failure, FailureCode, GroupResult, Results, Trained
from fedgsp.weights import Weights
from group_manager.aggregations import Aggregation, named
from group_manager.group import Group
from group_manager.norms import MemberResult, judged
from group_manager.programs.window import train_all

logger = logging.getLogger(__name__)


async def run(group: Group) -> GroupResult | Failure:
    """Folds the models in the order of the members, so that the bits do not depend on who ends first."""
    request = group.request
    try:
        intake = _Intake(group, named(request.aggregation))
    except ValueError as error:
        return Failure(FailureCode.BAD_ORDER, str(error))
    try:
        async for one in judged(group, train_all(group, intake.retain, bring=True)):
            outcome, model = one.outcome, None
            if isinstance(outcome, Trained) and one.member.weight > 0:
                collected = await group.models.collect(one.model_id, request.tensors)
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
        return group.nobody_trained()
    start: Weights | Failure | None = None
    if nobody_counts or intake.aggregation.needs_start:
        assert request.start is not None
        start = await group.models.collect(request.start.id)
    if isinstance(start, Failure):
        return start
    if nobody_counts:
        assert start is not None
        result, samples = start, intake.uncounted
        logger.warning("round=%d group=%d no member with a weight trained", request.round, request.group)
    else:
        result, samples = await asyncio.to_thread(_result, group, intake.aggregation, start), intake.samples
    ref = group.models.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result)
    return group.result(ref, samples)


class _Intake:
    """Folds one model after the other, each while the next one is on its way."""

    def __init__(self, group: Group, aggregation: Aggregation) -> None:
        self._group = group
        self._taking: asyncio.Task[None] | None = None
        self.aggregation = aggregation
        self.retain = group.request.results is Results.RETAINED
        #: Training samples of members with a weight, and of members without.
        self.samples = self.uncounted = 0

    async def take(self, one: MemberResult, model: Weights | None) -> None:
        """Waits until the member before is done, then begins with this one; without a model, it does not count."""
        await self.all_taken()
        if isinstance(one.outcome, Failure):
            self._skip(one, one.outcome)
        else:
            self._taking = asyncio.create_task(self._take(one, one.outcome, model))

    async def all_taken(self) -> None:
        """Waits until the last member is done."""
        if self._taking is not None:
            await self._taking

    def cancel(self) -> None:
        """Ends the work; nobody needs the aggregate any more."""
        if self._taking is not None:
            self._taking.cancel()

    async def _take(self, one: MemberResult, trained: Trained, model: Weights | None) -> None:
        group = self._group
        if model is None:
            self.uncounted += trained.samples
        else:
            try:
                await asyncio.to_thread(self.aggregation.fold, model, one.member.weight, trained.steps)
            except ValueError as error:
                self._skip(one, Failure(FailureCode.WRONG_SHAPES, str(error)))
                return
            self.samples += trained.samples
        trained = await group.models.with_update(trained)
        group.reports.done(one.member, one.position, trained, one.length or 0.0)
        group.models.release([one.model_id], stays=self.retain)

    def _skip(self, one: MemberResult, failure: Failure) -> None:
        self._group.models.forget_copy(one.model_id)
        self._group.reports.skipped(one.member, failure)


def _result(group: Group, aggregation: Aggregation, start: Weights | None) -> Weights:
    result = group.models.for_the_wire(aggregation.result(start))
    _ = result.digest  # computed in this thread and not in the event loop
    return result
