"""Survey: every member answers one question on its own: its class histogram, how good a model is, its own model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedgsp.messages import (
    Describe,
    Evaluate,
    Failure,
    FailureCode,
    GroupResult,
    Initialise,
    Member,
    ModelRef,
    Release,
    Result,
    Trained,
    Work,
)
from fedgsp.seeds import derive
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.members import Ticket


async def describe(group: Group) -> GroupResult | Failure:
    """Collects the members' class histograms."""
    return await _ask(group, "describe", lambda _: Describe())


async def evaluate(group: Group) -> GroupResult | Failure:
    """Evaluates what training makes of every member's start, or of the group's, on the member's test part."""
    return await _ask(
        group, "evaluate", lambda member: dataclasses.replace(_evaluation(group, member, False), personalised=True)
    )


async def evaluate_training(group: Group) -> GroupResult | Failure:
    """Evaluates the start itself on the member's training part."""
    return await _ask(group, "evaluate", lambda member: _evaluation(group, member, True))


async def compare(group: Group) -> GroupResult | Failure:
    """Evaluates the group's start on every member's training part, and how far it is from the member's own start."""
    return await _ask(group, "compare", lambda member: _comparison(group, member, False))


async def distance(group: Group) -> GroupResult | Failure:
    """How far the group's start is from every member's own start, and nothing else."""
    return await _ask(group, "distance", lambda member: _comparison(group, member, True))


async def collect(group: Group) -> GroupResult | Failure:
    """Brings the members' own models here, one by one, until the top server forgets them."""
    for position, member in enumerate(group.request.members):
        ref = member.start.ref.id if member.start is not None and member.start.ref is not None else ""
        handed = await group.hand_over(ref)
        if isinstance(handed, Failure):
            group.skipped(member, handed)
        else:
            group.done(member, position, Trained(handed))
    return GroupResult(ModelRef(""), 0, group.bytes_direct, group.bytes_relayed)


async def forget(group: Group) -> GroupResult | Failure:
    """Lets the nodes forget the members' own models."""
    for position, member in enumerate(group.request.members):
        if member.start is not None and member.start.ref is not None:
            key = group.key("forget", position)
            await group.outcome(group.submit(member, key, Release((member.start.ref.id,), own=True)))
    return GroupResult(ModelRef(""), 0, 0, 0)


async def initialise(group: Group) -> GroupResult | Failure:
    """Fresh weights by the first member that answers."""
    request = group.request
    assert request.training is not None
    reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")
    for position, member in enumerate(request.members):
        model_id = f"{request.run_id}/{request.round}/initial-{request.group}.{position}"
        # Other weights for every group number: schemes with several models must not start from equal ones.
        other = (request.group,) if request.group else ()
        work = Initialise(model_id, derive(request.training.seed, "initial-weights", *other))
        outcome = await group.outcome(group.submit(member, group.key("initialise", position), work))
        if isinstance(outcome, Trained):
            weights = await group.collect(model_id)
            if isinstance(weights, Weights):
                group.done(member, position, outcome)
                return GroupResult(weights.ref(model_id), 0, group.bytes_direct, group.bytes_relayed)
            outcome = weights
        reason = outcome if isinstance(outcome, Failure) else Failure(FailureCode.BAD_ORDER, "no model reported")
        group.skipped(member, reason)
    return reason


def _evaluation(group: Group, member: Member, training_part: bool, compared_with: str = "") -> Evaluate:
    return Evaluate(group.start_of(member, keep=True), training_part, compared_with, group.request.training)


def _comparison(group: Group, member: Member, only_compare: bool) -> Evaluate | None:
    if member.start is None or member.start.ref is None:
        return None
    work = _evaluation(group, dataclasses.replace(member, start=None), True, member.start.ref.id)
    return dataclasses.replace(work, only_compare=only_compare)


async def _ask(group: Group, task: str, work: Callable[[Member], Work | None]) -> GroupResult | Failure:
    """One order to every member; one for whom there is no work is skipped."""
    tickets: list[tuple[int, Member, Ticket]] = []
    for position, member in enumerate(group.request.members):
        order = work(member)
        if order is None:
            group.skipped(member, Failure(FailureCode.NO_SUCH_MODEL, "it has no model of its own to compare with"))
        else:
            tickets.append((position, member, group.submit(member, group.key(task, position), order)))
    for position, member, ticket in tickets:
        outcome = await group.outcome(ticket, in_turn=False)
        if isinstance(outcome, Failure):
            group.cancel(ticket)
            group.skipped(member, outcome)
        else:
            assert isinstance(outcome, Result)  # or it were a failure: see `answers`
            group.done(member, position, outcome)
    return GroupResult(ModelRef(""), 0, group.bytes_direct, group.bytes_relayed)
