"""Parallel: all members train from the same start, and their models are aggregated (FedAvg, FedNova)."""

from __future__ import annotations

import asyncio

from fedgsp.messages import Failure, FailureCode, GroupResult, Results
from fedgsp.weights import Weights
from group_manager.aggregations import AGGREGATIONS, Aggregation
from group_manager.group import Group
from group_manager.programs.window import train_all


async def run(group: Group) -> GroupResult | Failure:
    """Folds the members' models in the order of the members, so that the result has the same bits whoever is first."""
    request = group.request
    name = request.aggregation or "mean"
    if name not in AGGREGATIONS:
        return Failure(FailureCode.BAD_ORDER, f"unknown aggregation {name!r}; known: {', '.join(AGGREGATIONS)}")
    aggregation, samples = AGGREGATIONS[name](), 0
    retain = request.results is Results.RETAINED
    reason = Failure(FailureCode.UNSPECIFIED, "the group has no members")
    async for position, member, model_id, outcome in train_all(group, retain):
        if isinstance(outcome, Failure):
            reason = outcome
            group.skipped(member, outcome)
            continue
        if member.weight > 0:
            weights = await group.collect(model_id)
            if not isinstance(weights, Failure):
                weights = await asyncio.to_thread(_folded, aggregation, weights, member.weight, outcome.steps)
            if isinstance(weights, Failure):
                reason = weights
                group.skipped(member, weights)
                continue
            samples += outcome.samples
        group.done(member, position, await group.with_update(outcome))
        if retain:
            group.leave_with_client(model_id)
        group.release([model_id])
    if aggregation.empty:
        return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")
    start: Weights | Failure | None = None
    if aggregation.needs_start:
        assert request.start is not None
        start = await group.collect(request.start.id)
    if isinstance(start, Failure):
        return start
    result = await asyncio.to_thread(_result, group, aggregation, start)
    ref = group.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result)
    return GroupResult(ref, samples, group.bytes_direct, group.bytes_relayed)


def _result(group: Group, aggregation: Aggregation, start: Weights | None) -> Weights:
    result = group.handed_on(aggregation.result(start))
    _ = result.digest  # here and not in the event loop
    return result


def _folded(aggregation: Aggregation, weights: Weights, weight: float, steps: float) -> Weights | Failure:
    try:
        aggregation.fold(weights, weight, steps)
    except ValueError as error:
        return Failure(FailureCode.WRONG_SHAPES, str(error))
    return weights
