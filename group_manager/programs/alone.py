"""Alone: every member trains from its own start, and nothing is merged."""

from __future__ import annotations

from fedgsp.messages import Failure, FailureCode, GroupResult, ModelRef, Results, Trained
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.norms import judged
from group_manager.programs.window import train_all


async def run(group: Group) -> GroupResult | Failure:
    """What becomes of the members' models says the request; a start that was made here is the group's result."""
    request = group.request
    samples, trained = 0, 0
    reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")
    retain, trial = request.results is Results.RETAINED, request.results is Results.UNSPECIFIED
    async for one in judged(group, train_all(group, retain, trial)):
        outcome, model_id = one.outcome, one.model_id
        handed: ModelRef | Failure | None = None
        match outcome, request.results:
            case Failure(), _:
                handed = outcome
            case _, Results.RETAINED | Results.KEPT:
                group.leave_with_client(model_id)
                group.forget_here(model_id)
            case _, Results.COLLECTED:
                handed = await group.hand_over(model_id)
            case _:
                group.release([model_id])
        if isinstance(handed, Failure):
            reason = handed
            group.give_up(model_id)
            group.skipped(one.member, handed)
            continue
        assert isinstance(outcome, Trained)
        group.done(one.member, one.position, await group.with_update(outcome), one.length or 0.0)
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
