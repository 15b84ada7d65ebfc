"""Alone: every member trains from its own start, and nothing is merged."""

import contextlib

from fedgsp.messages import Failure, GroupResult, Results
from group_manager.group import Group
from group_manager.programs.ahead import Ahead
from group_manager.programs.window import nobody_asks, train_all


async def run(group: Group) -> GroupResult | Failure:
    """Trains every member, and deals with the models as `request.results` says.

    RETAINED: a client keeps its model and starts from it in later rounds. KEPT: its node keeps it until the run ends.
    COLLECTED: the model waits at this manager for the top server. UNSPECIFIED: all forget it.

    If this manager made the start of the group, that is the result, even if nobody trained. Otherwise there is no
    model.
    """
    with contextlib.closing(Ahead(group)) as ahead:
        return await _train(group, ahead)


async def _train(group: Group, ahead: Ahead) -> GroupResult | Failure:
    request = group.request
    samples, trained = 0, 0
    training = train_all(
        group,
        retain=request.results is Results.RETAINED,
        trial=request.results is Results.UNSPECIFIED,
        ordered=ahead.expect if request.results is Results.COLLECTED else nobody_asks,
    )
    async for one in training:
        outcome, model_id = one.outcome, one.model_id
        if not isinstance(outcome, Failure) and request.results is Results.COLLECTED:
            reserved = await group.models.reserve(model_id)
            outcome = reserved if isinstance(reserved, Failure) else outcome
        elif not isinstance(outcome, Failure):
            group.models.release([model_id], stays=request.results in (Results.RETAINED, Results.KEPT))
        ahead.over(model_id)
        if isinstance(outcome, Failure):
            group.models.forget_copy(model_id)
            group.reports.skipped(one.member, outcome)
            continue
        outcome = await group.models.with_update(outcome)
        group.reports.done(one.member, one.position, outcome, one.pending, one.length or 0.0)
        samples, trained = samples + outcome.samples, trained + 1
    if request.parts and request.start is not None:
        start = await group.models.collect(request.start.id)
        return start if isinstance(start, Failure) else group.result(start.ref(request.start.id), samples)
    return group.result(samples=samples) if trained else group.nobody_trained()
