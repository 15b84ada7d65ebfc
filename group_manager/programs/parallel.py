"""Parallel: all members train from the same start; the result is their sample-weighted mean (FedAvg)."""

from __future__ import annotations

import asyncio

from fedgsp.aggregation import Mean
from fedgsp.messages import Failure, FailureCode, GroupResult, Member, Train, Trained
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.members import Ticket

#: Results in training or waiting to be folded, per node: bounds memory whatever the number of members.
AHEAD_PER_NODE = 4


async def run(group: Group) -> GroupResult | Failure:
    """Folds the members' models in the order of the members, so that the mean has the same bits whoever is first."""
    request = group.request
    ahead = AHEAD_PER_NODE * len({member.node for member in request.members})
    start = group.start_of_group(keep=True)
    window: list[tuple[int, Member, str, Ticket]] = []
    waiting = list(enumerate(request.members))
    mean, samples = Mean(weighted=True), 0
    like: Weights | None = None
    reason = Failure(FailureCode.UNSPECIFIED, "the group has no members")
    while waiting or window:
        while waiting and len(window) < ahead:
            position, member = waiting.pop(0)
            model_id = f"{request.run_id}/{request.round}/{request.group}/{position}.0"
            ticket = group.submit(member, group.key("train", position), Train(start, model_id, request.training))
            window.append((position, member, model_id, ticket))
        position, member, model_id, ticket = window.pop(0)
        outcome = await group.outcome(ticket)
        if not isinstance(outcome, Trained):
            reason = outcome if isinstance(outcome, Failure) else Failure(FailureCode.BAD_ORDER, "no model reported")
            group.cancel(ticket)
            group.skipped(member, reason)
            continue
        weights = await group.collect(model_id)
        if isinstance(weights, Failure):
            reason = weights
            group.skipped(member, weights)
            continue
        await asyncio.to_thread(mean.fold, weights.arrays, outcome.samples)
        like, samples = weights, samples + outcome.samples
        group.done(member, position, outcome)
        group.release([model_id])
    if like is None:
        return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")
    result = Weights.of(mean.result(), like.tensors)
    ref = group.keep(f"{request.run_id}/{request.round}/{request.group}/mean", result)
    return GroupResult(ref, samples, group.bytes_direct, group.bytes_relayed)
