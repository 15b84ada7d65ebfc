"""Runs the task of one group, or a question to clients, on a manager, and on another one if it breaks off there."""

import dataclasses
import itertools

from fedgsp.messages import (
    AttachTo,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    Member,
    MemberSkipped,
    ModelRef,
    Part,
    RelayMode,
    Results,
    RunGroupRequest,
)
from fedgsp.programs import PROGRAMS
from fedgsp.tensors.weights import total_bytes
from top_server.groups.task import GroupOutcome, GroupTask, Trace
from top_server.groups.watch import GroupWatch
from top_server.managers.client import BrokenOff
from top_server.managers.pool import Manager
from top_server.models import Held
from top_server.nodes.waiting import wait_for_returns
from top_server.optimization import training_settings
from top_server.outgoing import outgoing_steps
from top_server.progress import Progress
from top_server.record.events.rounds import GroupResumed, QuestionFailed
from top_server.reveals.updates import Reveals
from top_server.run import RunContext

#: Managers on which a group is tried before it is given up.
MOST_MANAGERS = 4
#: Tries of a round, or of making a model, when nobody answers and some were lost. Tries of a round in which a node has
#: left do not count, but they have numbers, too: so many in all.
MOST_TRIES, MOST_NUMBERED = 5, 50


def first_attempt(times: int) -> int:
    """The first attempt number of a run that was resumed `times` times. Attempts before it had smaller numbers."""
    return times * MOST_NUMBERED * MOST_MANAGERS


def is_last(trace: Trace) -> bool:
    """Whether a group was tried on as many managers as it may be. The next number is that of another try."""
    return trace.attempt % MOST_MANAGERS == MOST_MANAGERS - 1


def fresh_trace(context: RunContext, tries: int = 0) -> Trace:
    """The trace of a group that has done nothing yet. Models of every try, and after every resume, have other ids."""
    return Trace(first_attempt(context.times) + tries * MOST_MANAGERS)


def shown(task: GroupTask, trace: Trace, reveals: Reveals | None) -> Trace:
    """The trace without the first member whose update did not come here, and without the members after it.

    These members train again.
    """
    if task.reveal is None or reveals is None:
        return trace
    came = itertools.takewhile(lambda hop: hop.member and reveals.came(hop.member.client), trace.finished)
    return dataclasses.replace(trace, finished=tuple(came))


async def run_group(
    context: RunContext,
    progress: Progress,
    round_number: int,
    task: GroupTask,
    manager: Manager,
    trace: Trace,
    reveals: Reveals | None = None,
) -> GroupOutcome:
    """Runs a group on a manager, and on another one if it breaks off there; the journal gets what members report.

    A relay that began under an earlier manager continues after the hops of `trace`. What members reveal of their
    updates goes to `reveals`.
    """
    context.door.play(context.run_id, round_number)
    while True:
        outcome = await _on(context, progress, round_number, task, manager, trace, reveals)
        if outcome.broken_off is None:
            return outcome
        if is_last(trace):
            if outcome.broken_off.lost:
                await context.managers.discard(manager)
            return outcome
        manager, trace = await _elsewhere(context, round_number, outcome, outcome.broken_off.lost, reveals)


async def run_again(
    context: RunContext,
    progress: Progress,
    round_number: int,
    outcome: GroupOutcome,
    lost: bool,
    reveals: Reveals | None,
) -> GroupOutcome:
    """Runs a group again whose result did not come from its manager; `lost`: that manager is gone."""
    manager, trace = await _elsewhere(context, round_number, outcome, lost, reveals)
    return await run_group(context, progress, round_number, outcome.task, manager, trace, reveals)


async def _elsewhere(
    context: RunContext, round_number: int, outcome: GroupOutcome, lost: bool, reveals: Reveals | None
) -> tuple[Manager, Trace]:
    """The next manager for a group, and from where it goes on; `lost`: the manager of `outcome` is gone."""
    managers, task = context.managers, outcome.task
    manager = await managers.replace(outcome.manager) if lost else managers.other_than(outcome.manager)
    trace = shown(task, outcome.trace.after(outcome), reveals)
    for group in task.groups:
        context.journal.record(
            GroupResumed(
                round=round_number,
                group=group,
                program=task.program,
                manager=manager.name,
                finished=len(trace.finished),
            )
        )
    return manager, trace


async def survey(
    context: RunContext,
    progress: Progress,
    round_number: int,
    task: GroupTask,
    *,
    tries: int = 0,
    reveals: Reveals | None = None,
) -> GroupOutcome:
    """Asks clients a question between the trainings of a round: plays a task on one manager, as `run_group` does.

    `tries` counts repetitions of the same task.
    """
    (manager,) = await context.managers.ensure(1)
    outcome = await run_group(context, progress, round_number, task, manager, fresh_trace(context, tries), reveals)
    # Of the others there is an event each.
    if not_asked := outcome.unanswered.keys() - outcome.left_out:
        reason = str(outcome.result)
        context.journal.record(
            QuestionFailed(round=round_number, program=task.program, clients=sorted(not_asked), reason=reason)
        )
    return outcome


async def _on(
    context: RunContext,
    progress: Progress,
    round_number: int,
    task: GroupTask,
    manager: Manager,
    trace: Trace,
    reveals: Reveals | None,
) -> GroupOutcome:
    left_out = {skipped.client for skipped in trace.skipped}
    await wait_for_returns(context.membership, task.clients)
    trained = {hop.member.client for hop in trace.finished if hop.member is not None}
    hosted = {client: _member(context, task, client) for client in task.clients if client not in left_out}
    members = tuple(member for member in hosted.values() if isinstance(member, Member))
    largest = max(total_bytes(context.membership.tensors), task.max_bytes, reveals.max_bytes if reveals else 0)
    request = _request(context, progress, round_number, task, members, trace, largest, manager.hands_on)
    # The nodes that hold parts of the start may be others than those of the members.
    for node in {member.node for member in members}.union(part.node for part in request.parts if part.node):
        context.membership.attach(node, AttachTo(manager.name, manager.address))
    watcher = GroupWatch(context, progress, request, manager, trace, reveals, task.groups_of_one)
    for client, member in hosted.items():
        if isinstance(member, Failure) and client not in trained:
            watcher(GroupEvent(MemberSkipped(client, member)))
    try:
        ended = await manager.client.run_group(request, watcher)
        broken_off = ended if isinstance(ended, BrokenOff) else None
        result = watcher.ended(ended.reason if isinstance(ended, BrokenOff) else ended)
        await watcher.all_taken()
    finally:
        watcher.cancel()
    if broken_off is None and isinstance(result, GroupResult):
        broken_off = watcher.not_given
    if broken_off is None or is_last(trace):
        watcher.skip_missing()
    return GroupOutcome(
        task,
        manager,
        result,
        done=tuple(watcher.done),
        skipped=tuple(watcher.skipped),
        lost=watcher.lost,
        models=watcher.models,
        hops=tuple(watcher.hops),
        trace=trace,
        broken_off=broken_off,
    )


def _member(context: RunContext, task: GroupTask, client: int) -> Member | Failure:
    """A client of a group as its manager reads it, or why it takes no part."""
    if client in context.membership.left_out:
        return Failure(FailureCode.UNSPECIFIED, "it is left out of the run: its models were refused")
    member = context.membership.member(client)
    if member is None and context.membership.departures.dropped(client):
        return Failure(FailureCode.UNKNOWN_CLIENT, "its node has come back without it")
    if member is None:
        return Failure(FailureCode.NODE_LOST, "its node left")
    if lacks := task.lacks(client, member.samples):  # its node is there, and not to blame
        return Failure(FailureCode.UNSPECIFIED, lacks)
    start = _part(context, task.own_starts[client]) if client in task.own_starts else None
    # Only where nobody is weighed a weight may be missing; there it has no effect.
    return dataclasses.replace(member, start=start, weight=task.weights.get(client, float(member.samples)))


def _part(context: RunContext, held: Held, weight: float = 0.0) -> Part:
    """A model in the form that managers read: its holder is the node that hosts the client now."""
    if held.client is None:
        return Part(held.ref, "", weight)
    member = context.membership.member(held.client)
    # A node that left cannot be asked; its name makes the manager say so.
    return Part(held.ref, member.node if member else f"of client {held.client}", weight, held.client)


def _request(
    context: RunContext,
    progress: Progress,
    round_number: int,
    task: GroupTask,
    members: tuple[Member, ...],
    trace: Trace,
    max_model_bytes: int,
    hands_on: bool,
) -> RunGroupRequest:
    config = context.config
    merged = PROGRAMS[task.program].makes_model or task.results in (Results.RETAINED, Results.COLLECTED)
    start: ModelRef | None = None
    parts: tuple[Part, ...] = ()
    if len(task.starts) == 1 and task.starts[0][0].client is None:
        start = task.starts[0][0].ref
    elif task.starts:
        membership = context.membership
        there = [one for one in task.starts if one[0].client is None or membership.member(one[0].client) is not None]
        parts = tuple(_part(context, held, weight) for held, weight in there or task.starts)
        # Another try may make another mean: of other members, or without a lost part. Nodes may still hold the first.
        made = f"{context.run_id}/{round_number}/{task.number}/{task.program}"
        start = ModelRef(f"{made}/start.{trace.attempt}")
    return RunGroupRequest(
        run_id=context.run_id,
        round=round_number,
        group=task.number,
        program=task.program,
        members=members,
        start=start,
        start_address=context.address,
        relay=RelayMode[config.relay.upper()],
        shuffle=context.scheme.shuffle,
        training=training_settings(config, context.scheme, round_number, task.training, task.local_epochs),
        stall_timeout_s=config.stall_timeout,
        max_model_bytes=max_model_bytes,
        parts=parts,
        without_head=context.scheme.without_head,
        reveal=task.reveal,
        results=task.results,
        aggregation=context.scheme.aggregation,
        aggregation_options=context.scheme.given("aggregation"),
        program_options=context.scheme.given("program") if task.program == context.scheme.program else {},
        discrimination=task.discrimination,
        planned=task.clients,
        attempt=trace.attempt,
        finished=trace.finished,
        # Fresh weights are the whole model, also the part that does not travel later.
        tensors=context.membership.tensors if PROGRAMS[task.program].initialises else context.tensors,
        most_update_ratio=(config.update_norm_limit or 0.0) if merged else 0.0,
        serial=next(context.audit.serials),
        update_lengths=tuple(progress.update_lengths) if config.update_norm_limit else (),
        outgoing=outgoing_steps(config, context.scheme),
        # A chain has one reader of its start, which gets it sooner from the top server itself.
        hand_on_start=hands_on and not PROGRAMS[task.program].chained,
    )
