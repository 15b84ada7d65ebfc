"""Parallel: all members train from the same start, and an aggregation makes one model of theirs."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import UserError
from fedgsp.messages import Failure, FailureCode, GroupResult, Member, Results, Trained
from fedgsp.tensors.weights import Weights
from group_manager.aggregation_classes import Aggregation, make
from group_manager.group import Group
from group_manager.programs import together
from group_manager.programs.ahead import Ahead
from group_manager.programs.window import MemberResult, train_all
from group_manager.sessions import PendingOrder

logger = logging.getLogger(__name__)


async def run(group: Group) -> GroupResult | Failure:
    """Folds the models in the order of the members, so that the bits do not depend on who ends first."""
    request = group.request
    try:
        intake = _Intake(group, make(request.aggregation, request.aggregation_options))
    except UserError as error:
        return Failure(FailureCode.BAD_ORDER, str(error))
    with contextlib.closing(intake.ahead):
        await _train(group, intake)
    nobody_counts = intake.empty
    if nobody_counts and not intake.uncounted:
        return group.nobody_trained()
    start: Weights | Failure | None = None
    if nobody_counts or intake.part.needs_start:
        assert request.start is not None
        start = await group.models.collect(request.start.id)
    if isinstance(start, Failure):
        return start
    result, samples = start, intake.uncounted
    if nobody_counts:
        logger.warning("round=%d group=%d no member with a weight trained", request.round, request.group)
    else:
        result, samples = await asyncio.to_thread(intake.result, start), intake.samples
    assert result is not None
    return group.result(group.models.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result), samples)


async def _train(group: Group, intake: "_Intake") -> None:
    """Lets the members train, and takes their results."""
    folding, tensors = None, group.request.tensors
    accuracy = intake.aggregation.needs_accuracy
    training = train_all(group, intake.retain, bring=True, accuracy=accuracy, ordered=intake.ordered)
    if intake.aggregation.by_blocks and together.fits(group):
        results = [one async for one in training]
        training = _again(() if await intake.take_together(results) else results)
    try:
        async for one in training:
            if isinstance(one.outcome, Failure):
                intake.ahead.over(one.model_id)  # a report that comes late is too late
            model = await group.models.collect(one.model_id, tensors) if _counts(one) else None
            if folding is not None:
                await folding
            # A task: the next model is on its way while this one is folded.
            folding = asyncio.create_task(intake.take(one, model))
        if folding is not None:
            await folding
    finally:
        if folding is not None:
            folding.cancel()


async def _again(results: Sequence[MemberResult]) -> AsyncIterator[MemberResult]:
    for one in results:
        yield one


def _counts(one: MemberResult) -> bool:
    return isinstance(one.outcome, Trained) and one.member.weight > 0


class _Intake:
    """Folds models into the aggregation, and counts samples."""

    def __init__(self, group: Group, aggregation: Aggregation) -> None:
        self._group = group
        self.aggregation = aggregation
        self.ahead = Ahead(group)
        self.part = AGGREGATIONS[group.request.aggregation or "mean"]
        self.retain = group.request.results is Results.RETAINED
        #: Training samples of members with a weight, and of members without.
        self.samples = self.uncounted = 0
        #: The mean of the models, if they were folded together and not into the aggregation.
        self._mean: Weights | None = None

    @property
    def empty(self) -> bool:
        """Whether no model was folded."""
        return self._mean is None and self.aggregation.empty

    def ordered(self, member: Member, model_id: str, pending: PendingOrder) -> None:
        """A member was ordered to train, and its model must be asked for."""
        if member.weight > 0:
            self.ahead.expect(member, model_id, pending)

    async def take_together(self, results: Sequence[MemberResult]) -> bool:
        """Takes the results of all members, whose models come at the same time; nothing is taken if that fails."""
        counted = [one for one in results if _counts(one)]
        if len(counted) < 2:
            return False
        mean = await together.mean(self._group, counted)
        if isinstance(mean, Failure):
            request = self._group.request
            logger.warning(
                "round=%d group=%d the models are folded one after the other: %s", request.round, request.group, mean
            )
            return False
        self._mean = mean
        for one in results:
            await self._note(one, _counts(one))
        return True

    async def take(self, one: MemberResult, model: Weights | Failure | None) -> None:
        """Takes one member's result; without a model, the member does not count."""
        trained = one.outcome
        if isinstance(trained, Trained) and isinstance(model, Weights):
            try:
                await asyncio.to_thread(self._fold, model, one.member.weight, trained)
            except ValueError as error:
                model = Failure(FailureCode.WRONG_SHAPES, str(error))
        if isinstance(model, Failure):
            one = replace(one, outcome=model)
        await self._note(one, model is not None)

    async def _note(self, one: MemberResult, counts: bool) -> None:
        """Reports a member, and lets its model be forgotten; `counts`: its model was folded, if it has one."""
        group, trained = self._group, one.outcome
        self.ahead.over(one.model_id)
        if isinstance(trained, Failure):
            group.models.forget_copy(one.model_id)
            group.reports.skipped(one.member, trained)
            return
        if counts:
            self.samples += trained.samples
        else:
            self.uncounted += trained.samples
        trained = await group.models.with_update(trained)
        group.reports.done(one.member, one.position, trained, one.pending, one.length or 0.0)
        group.models.release([one.model_id], stays=self.retain)

    def result(self, start: Weights | None) -> Weights:
        """The group's model as it travels, with its digest."""
        with self.part.guard():
            result = self._mean if self._mean is not None else self.aggregation.result(start)
            result = self._group.models.for_the_wire(result)
        _ = result.digest  # computed in this thread and not in the event loop
        return result

    def _fold(self, model: Weights, weight: float, trained: Trained) -> None:
        with self.part.guard(ValueError):
            self.aggregation.take(model, weight, trained)
