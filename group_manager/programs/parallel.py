"""Parallel: all members train from the same start; the result is their mean by the members' weights (FedAvg)."""

from __future__ import annotations

import asyncio

from fedgsp.aggregation import Mean
from fedgsp.messages import Failure, FailureCode, GroupResult
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.programs.window import train_all


async def run(group: Group) -> GroupResult | Failure:
    """Folds the members' models in the order of the members, so that the mean has the same bits whoever is first."""
    request = group.request
    mean, samples = Mean(weighted=True), 0
    like: Weights | None = None
    reason = Failure(FailureCode.UNSPECIFIED, "the group has no members")
    async for position, member, model_id, outcome in train_all(group):
        if isinstance(outcome, Failure):
            reason = outcome
            group.skipped(member, outcome)
            continue
        if member.weight > 0:
            weights = await group.collect(model_id)
            if isinstance(weights, Failure):
                reason = weights
                group.skipped(member, weights)
                continue
            await asyncio.to_thread(mean.fold, weights.arrays, member.weight)
            like, samples = weights, samples + outcome.samples
        group.done(member, position, await group.with_update(outcome))
        group.release([model_id])
    if like is None:
        return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")
    result = Weights.of(mean.result(), like.tensors)
    ref = group.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result)
    return GroupResult(ref, samples, group.bytes_direct, group.bytes_relayed)
