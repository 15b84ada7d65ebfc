"""Models on their way from a group manager into this process."""

from fedgsp.identity import TOP_SERVER
from fedgsp.messages import Failure, FailureCode, GroupResult, ModelRef, Results, TensorSpec, Trained
from fedgsp.programs import PROGRAMS
from fedgsp.tensors.weights import Weights, total_bytes
from fedgsp.visible import visible
from top_server.groups.lost import LOST
from top_server.groups.task import GroupOutcome
from top_server.managers.client import BrokenOff
from top_server.managers.pool import Manager
from top_server.merging.base import GroupModel, MemberModel, Merging
from top_server.models import Held
from top_server.progress import Progress
from top_server.record.events.rounds import ModelLost
from top_server.run import RunContext


async def take(
    context: RunContext, outcome: GroupOutcome, tensors: tuple[TensorSpec, ...] = ()
) -> Weights | Failure | BrokenOff:
    """The model of a group; `tensors` are given if it is not a model that travels in this run."""
    if isinstance(outcome.result, Failure):
        return outcome.result
    if outcome.result.ref is None or not outcome.result.ref.id:
        return Failure(FailureCode.NO_SUCH_MODEL, "the group ended without a model")
    return await take_model(context, outcome.manager, outcome.result.ref, tensors)


async def take_model(
    context: RunContext, manager: Manager, ref: ModelRef, tensors: tuple[TensorSpec, ...] = ()
) -> Weights | Failure | BrokenOff:
    """A model that a manager holds for this process."""
    expected = tensors or context.tensors
    return noted(context, manager, ref, await manager.client.take(ref, expected, total_bytes(expected)))


def noted(
    context: RunContext, manager: Manager, ref: ModelRef, taken: Weights | Failure | BrokenOff
) -> Weights | Failure | BrokenOff:
    """What was taken from a manager, with a line in the audit log."""
    if isinstance(taken, Weights):
        me = str(TOP_SERVER)
        told = {"at": f"manager {manager.name}", "model": visible(ref.id), "reader": me, "caller": me}
        context.audit.note("fetched", **told, bytes=taken.buffer.nbytes)
    return taken


async def group_model(context: RunContext, outcome: GroupOutcome) -> GroupModel | Failure | BrokenOff:
    """The result of a group as merges read it, with the weights that must come here; a Failure if there is no result.

    BrokenOff: there is a result, and its manager does not give it.

    If the members trained alone, their models were collected while the group ran, or stay on their nodes.
    """
    weights = await take(context, outcome) if PROGRAMS[outcome.task.program].makes_model else None
    if isinstance(weights, Failure | BrokenOff):
        return weights
    failures = [outcome.result] if isinstance(outcome.result, Failure) else []
    members = {}
    for done in sorted(outcome.done, key=lambda done: done.client):
        if not isinstance(done.result, Trained) or done.result.ref is None:
            continue
        own = outcome.models[done.client] if outcome.task.results is Results.COLLECTED else None
        if isinstance(own, Failure):
            failures.append(own)
        else:
            members[done.client] = MemberModel(Held(done.result.ref, done.client), done.result.samples, own)
    if failures and not members:
        return failures[-1]
    samples = outcome.result.samples if isinstance(outcome.result, GroupResult) else 0
    took_part = frozenset(outcome.took_part)
    return GroupModel(outcome.task.number, outcome.task.clients, took_part, samples, weights, members)


def note_lost(context: RunContext, progress: Progress, merging: Merging, outcome: GroupOutcome) -> None:
    """Forgets the models that a group was to use and that no longer exist; their clients start afresh."""
    # A model may come back with a node that is away.
    gone = {client: failure for client, failure in outcome.lost.items() if failure.code not in LOST}
    for skipped in outcome.skipped:
        why = skipped.failure
        if skipped.client in outcome.task.own_starts and why and why.code is FailureCode.NO_SUCH_MODEL:
            gone[skipped.client] = why
    if not gone:
        return
    for client, slot in merging.lose(dict(sorted(gone.items())), context.models.slots).items():
        context.models.apply({slot: None})
        progress.afresh.add(client)
        context.journal.record(ModelLost(client=client, reason=str(gone[client])))
