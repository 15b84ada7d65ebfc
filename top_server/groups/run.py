"""One group on one manager, and on another if that one is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsp.encoding import BFLOAT16
from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupEvent,
    Member,
    MemberSkipped,
    ModelRef,
    Part,
    RelayMode,
    Results,
    RunGroupRequest,
    TrainingSettings,
)
from fedgsp.weights import total_bytes
from top_server.groups.task import GroupOutcome, GroupTask, Trace
from top_server.groups.watch import GroupWatch
from top_server.managers.pool import Manager
from top_server.models import Held
from top_server.outgoing import outgoing_steps

if TYPE_CHECKING:
    from top_server.run import Run

#: Managers that a group is tried on before it is given up.
MOST_MANAGERS = 4
#: How often a round, or the making of a model, is tried whose nodes are lost.
MOST_TRIES = 5


def first_attempt(times: int) -> int:
    """Where a run that was resumed so often counts attempts at groups from: what it makes then has other ids."""
    return times * MOST_TRIES * MOST_MANAGERS


async def run_group(run: Run, round_number: int, task: GroupTask, manager: Manager, trace: Trace) -> GroupOutcome:
    """Runs one group, on others if its manager is lost; what its members report goes to the journal as it comes.

    A relay that began before, under a manager that is gone, goes on from what its trace says.
    """
    while True:
        outcome = await _on(run, round_number, task, manager, trace)
        if not outcome.manager_lost:
            return outcome
        if trace.attempt % MOST_MANAGERS == MOST_MANAGERS - 1:
            await run.managers.discard(manager)
            return outcome
        manager = await run.managers.replace(manager)
        trace = run.shown(task, trace.after(outcome))
        told = {"program": task.program, "manager": manager.name, "finished": len(trace.finished)}
        for group in task.groups:
            run.journal.record("group_resumed", round=round_number, group=group, **told)


async def _on(run: Run, round_number: int, task: GroupTask, manager: Manager, trace: Trace) -> GroupOutcome:
    members, absent = [], []
    left_out = {skipped.client for skipped in trace.skipped}
    for client in task.clients:
        if client in left_out:
            continue
        member = _member(run, task, client)
        if member is not None:
            members.append(member)
        elif client not in trace.clients:
            absent.append(client)
    for node in {member.node for member in members}:
        run.membership.attach(node, manager.contact)
    request = _request(run, round_number, task, tuple(members), trace)
    watcher = GroupWatch(run, request, manager, trace, task.groups_of_one)
    for client in absent:
        watcher(GroupEvent(MemberSkipped(client, Failure(FailureCode.NODE_LOST, "its node left"))))
    try:
        result = await manager.client.run_group(request, watcher)
        await watcher.all_taken()
    finally:
        watcher.cancel()
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
    )


def _member(run: Run, task: GroupTask, client: int) -> Member | None:
    member = run.membership.member(client)
    if member is None:
        return None
    start = _part(run, task.own_starts[client]) if client in task.own_starts else None
    weight = task.weights.get(client, float(member.samples))
    return Member(member.client, member.node, member.peer_address, member.samples, start, weight)


def _part(run: Run, held: Held, weight: float = 0.0) -> Part:
    """How a manager is told of a model: by the node where its client is now."""
    if held.client is None:
        return Part(held.ref, "", weight)
    member = run.membership.member(held.client)
    # A node that left cannot be asked; its name makes the manager say so.
    return Part(held.ref, member.node if member else f"of client {held.client}", weight, held.client)


def _request(
    run: Run, round_number: int, task: GroupTask, members: tuple[Member, ...], trace: Trace
) -> RunGroupRequest:
    config = run.config
    merged = task.program != "alone" or task.results in (Results.RETAINED, Results.COLLECTED)
    parts: tuple[Part, ...] = ()
    start = None
    if len(task.starts) == 1 and task.starts[0][0].client is None:
        start = task.starts[0][0].ref
    elif task.starts:
        parts = tuple(_part(run, held, weight) for held, weight in task.starts)
        start = ModelRef(f"{run.run_id}/{round_number}/{task.number}/{task.program}-start")
    return RunGroupRequest(
        run_id=run.run_id,
        round=round_number,
        group=task.number,
        program=task.program,
        members=members,
        start=start,
        start_address=run.address,
        relay=RelayMode[config.relay.upper()],
        shuffle=run.scheme.shuffle,
        training=TrainingSettings(
            task.training or run.scheme.training,
            task.local_epochs or config.local_epochs,
            config.batch_size,
            config.learning_rate_in(round_number),
            config.seed,
            {} if task.training else config.training_option,
            config.wire_dtype == BFLOAT16,
        ),
        stall_timeout_s=config.stall_timeout,
        max_model_bytes=max(
            total_bytes(run.membership.tensors), run.updates.max_bytes if run.updates else 0, task.max_bytes
        ),
        parts=parts,
        without_head=run.scheme.without_head,
        reveal=task.reveal,
        results=task.results,
        aggregation=run.aggregation,
        discrimination=task.discrimination,
        planned=task.clients,
        attempt=trace.attempt,
        finished=trace.finished,
        tensors=run.tensors,
        most_update_ratio=(config.update_norm_limit or 0.0) if merged else 0.0,
        serial=next(run.serials),
        update_lengths=tuple(run.update_lengths) if config.update_norm_limit else (),
        outgoing=outgoing_steps(config, run.scheme),
    )
