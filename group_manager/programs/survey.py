"""Survey: every member answers one question on its own: its class histogram, how good a model is, fresh weights."""

from __future__ import annotations

from fedgsp.messages import Describe, Evaluate, Failure, FailureCode, GroupResult, Initialise, ModelRef, Trained, Work
from fedgsp.seeds import derive
from fedgsp.weights import Weights
from group_manager.group import Group


async def describe(group: Group) -> GroupResult | Failure:
    """Collects the members' class histograms."""
    return await _ask(group, "describe", Describe())


async def evaluate(group: Group) -> GroupResult | Failure:
    """Evaluates the start model on every member's test part."""
    return await _ask(group, "evaluate", Evaluate(group.start_of_group(keep=True)))


async def initialise(group: Group) -> GroupResult | Failure:
    """Fresh weights by the first member that answers."""
    request = group.request
    assert request.training is not None
    reason = Failure(FailureCode.UNSPECIFIED, "the group has no members")
    for position, member in enumerate(request.members):
        model_id = f"{request.run_id}/{request.round}/initial.{position}"
        work = Initialise(model_id, derive(request.training.seed, "initial-weights"))
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


async def _ask(group: Group, task: str, work: Work) -> GroupResult | Failure:
    members = group.request.members
    tickets = [group.submit(member, group.key(task, position), work) for position, member in enumerate(members)]
    for position, (member, ticket) in enumerate(zip(members, tickets, strict=True)):
        outcome = await group.outcome(ticket)
        if outcome is None or isinstance(outcome, Failure):
            group.cancel(ticket)
            group.skipped(member, outcome or Failure(FailureCode.BAD_ORDER, "an empty answer"))
        else:
            group.done(member, position, outcome)
    return GroupResult(ModelRef(""), 0, group.bytes_direct, group.bytes_relayed)
