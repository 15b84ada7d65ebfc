"""Alone: every member trains from its own start, and nothing is merged."""

from __future__ import annotations

from fedgsp.messages import Failure, FailureCode, GroupResult, ModelRef, Results
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.programs.window import train_all


async def run(group: Group) -> GroupResult | Failure:
    """What becomes of the members' models says the request; a start that was made here is the group's result."""
    request = group.request
    samples, trained = 0, 0
    reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")
    retain, trial = request.results is Results.RETAINED, request.results is Results.UNSPECIFIED
    async for position, member, model_id, outcome in train_all(group, retain, trial):
        if isinstance(outcome, Failure):
            reason = outcome
            group.skipped(member, outcome)
            continue
        handed: ModelRef | Failure | None = None
        match request.results:
            case Results.RETAINED | Results.KEPT:
                group.leave_with_client(model_id)
            case Results.COLLECTED:
                handed = await group.hand_over(model_id)
            case _:
                group.release([model_id])
        if isinstance(handed, Failure):
            reason = handed
            group.skipped(member, handed)
            continue
        group.done(member, position, await group.with_update(outcome))
        samples, trained = samples + outcome.samples, trained + 1
    if not trained:
        return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")
    ref = ModelRef("")
    if request.parts and request.start is not None:
        start = await group.collect(request.start.id)
        if not isinstance(start, Weights):
            return start
        ref = start.ref(request.start.id)
    return GroupResult(ref, samples, group.bytes_direct, group.bytes_relayed)
