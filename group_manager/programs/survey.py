"""Surveys: every member answers one question on its own, or sends or forgets one model."""

import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial

from fedgsp.messages import (
    Describe,
    Evaluate,
    Failure,
    FailureCode,
    GroupResult,
    Member,
    Release,
    Result,
    Trained,
    Work,
)
from group_manager.group import Group
from group_manager.programs.ahead import Ahead
from group_manager.sessions import PendingOrder


async def ask(group: Group) -> GroupResult | Failure:
    """Asks every member the program's question. A member that lacks the model that the question needs is skipped."""
    question, task = QUESTIONS[group.request.program], group.request.program
    asked: list[tuple[int, Member, PendingOrder]] = []
    for position, member in enumerate(group.request.members):
        work = question(group, member)
        if work is None:
            lacking = Failure(FailureCode.NO_SUCH_MODEL, "it has no model of its own to compare with")
            group.reports.skipped(member, lacking)
        else:
            key = group.orders.key(task, position)
            asked.append((position, member, group.orders.submit(member, key, work, patient=True)))
    everyone = [pending for *_, pending in asked]
    for position, member, pending in asked:
        outcome = await group.orders.outcome(pending, in_turn=False, beside=lambda: everyone)
        if isinstance(outcome, Failure):
            group.orders.cancel(pending)
            group.reports.skipped(member, outcome)
        else:
            assert isinstance(outcome, Result)  # `Members` has turned all else into failures
            group.reports.done(member, position, outcome, pending)
    return group.result()


async def collect(group: Group) -> GroupResult | Failure:
    """Brings the members' own models to this manager, one by one, where the top server fetches them."""
    with contextlib.closing(Ahead(group)) as ahead:
        for member in group.request.members:
            if own := _own_model(member):
                ahead.expect(member, own, None)
        for position, member in enumerate(group.request.members):
            own = _own_model(member)
            reserved = await group.models.reserve(own)
            ahead.over(own)
            if isinstance(reserved, Failure):
                group.models.forget_copy(own)
                group.reports.skipped(member, reserved)
            else:
                group.reports.done(member, position, Trained(reserved), None)
    return group.result()


async def forget(group: Group) -> GroupResult | Failure:
    """Lets the nodes forget the members' own models."""
    forgetting = [
        group.orders.submit(member, group.orders.key("forget", position), Release((own,), own=True))
        for position, member in enumerate(group.request.members)
        if (own := _own_model(member))
    ]
    for pending in forgetting:
        await group.orders.outcome(pending, in_turn=False)
    return group.result()


def _own_model(member: Member) -> str:
    """The id of the model that a member starts from; empty if it has none."""
    return member.start.ref.id if member.start is not None and member.start.ref is not None else ""


def _evaluation(
    group: Group,
    member: Member,
    training_part: bool = True,
    compared_with: str = "",
    personalised: bool = False,
    only_compare: bool = False,
    validation_part: bool = False,
) -> Evaluate:
    """Evaluates a member's start, or that of the group."""
    # A start that only one member of a node needs may be evaluated in place.
    start = group.given_start(member, keep=not group.is_alone(member))
    return Evaluate(
        start, training_part, compared_with, group.request.training, personalised, only_compare, validation_part
    )


def _comparison(group: Group, member: Member, only_compare: bool = False) -> Evaluate | None:
    """Evaluates the group's start, and compares it with the member's own start."""
    own = _own_model(member)
    if not own:
        return None
    of_group = dataclasses.replace(member, start=None)
    return _evaluation(group, of_group, compared_with=own, only_compare=only_compare)


#: Program -> the order for one member; None if the member lacks a model that the order needs.
QUESTIONS: dict[str, Callable[[Group, Member], Work | None]] = {
    "compare": _comparison,
    "describe": lambda _group, _member: Describe(),
    "distance": partial(_comparison, only_compare=True),
    # The model that the run's training makes of the start, on the member's test data.
    "evaluate": partial(_evaluation, training_part=False, personalised=True),
    "evaluate-training": _evaluation,
    "evaluate-validation": partial(_evaluation, training_part=False, validation_part=True, personalised=True),
}
