"""Relay: the model travels from client to client, each trains it and hands it on.

The whole chain is declared at once: every order names the promised model it starts from, so the chain drives itself.
This program only watches, and steps in when a hop fails or stalls.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgsp.messages import Failure, FailureCode, GroupResult, Member, Source, SourceKind, Start, Train, Trained
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.members import Ticket
from group_manager.order import client_order

#: A reader that could not fetch may have failed because the holder is gone.
HOLDERS_FAULT = (FailureCode.UNREACHABLE, FailureCode.CUT_SHORT, FailureCode.STALLED)


@dataclass(frozen=True, slots=True)
class Hop:
    """A member that has trained, or is to, and the id of its result."""

    member: Member
    model_id: str


@dataclass(frozen=True, slots=True)
class Declared:
    """A hop on its way."""

    hop: Hop
    start: Start
    ticket: Ticket


async def run(group: Group) -> GroupResult | Failure:
    """Walks the chain; returns the last model, or why there is none. Failed members are skipped."""
    request = group.request
    assert request.training is not None
    remaining = client_order(request.members, request.shuffle, request.training.seed, request.round, request.group)
    trail: list[Hop] = []  # finished hops, oldest first
    samples: dict[int, int] = {}
    attempt = 0
    reason = Failure(FailureCode.UNSPECIFIED, "the group has no members")
    while True:
        chain = _declare(group, remaining, trail[-1] if trail else None, len(trail), attempt)
        failed: Failure | None = None
        for declared in chain:
            outcome = await group.outcome(declared.ticket)
            if not isinstance(outcome, Trained) or outcome.ref is None:
                failed = outcome if isinstance(outcome, Failure) else _no_model(declared.hop.member)
                break
            member = remaining.pop(0)
            _note_reroute(group, declared, outcome.source)
            group.done(member, len(trail), await group.with_update(outcome))
            trail.append(declared.hop)
            samples[member.client] = outcome.samples
            _let_go(group, trail)
        if failed is None and trail:
            collected = await group.collect(trail[-1].model_id)
            if isinstance(collected, Weights):
                total = sum(samples[hop.member.client] for hop in trail)
                ref = collected.ref(trail[-1].model_id)
                return GroupResult(ref, total, group.bytes_direct, group.bytes_relayed)
            failed = collected
        if failed is not None:
            reason = failed
            for declared in chain[len(chain) - len(remaining) :]:
                group.cancel(declared.ticket)
            if trail and failed.code in HOLDERS_FAULT:
                await group.check(trail[-1].member.node)
            lost = _roll_back(group, trail)
            for hop in reversed(lost):
                if group.attached(hop.member.node):
                    remaining.insert(0, hop.member)  # alive: trains again, from an earlier model
                else:
                    group.skipped(hop.member, Failure(FailureCode.NODE_LOST, "its result was lost with its node"))
            if not lost and remaining:
                group.skipped(remaining.pop(0), failed)
            elif not lost and trail:
                return failed
        if not remaining and not trail:
            return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")
        attempt += 1


def _declare(group: Group, members: list[Member], last: Hop | None, position: int, attempt: int) -> list[Declared]:
    """Orders the whole rest of the chain."""
    request, chain = group.request, []
    for offset, member in enumerate(members):
        start = (
            group.start_of(member, keep=False)
            if last is None
            else group.start_from(last.model_id, last.member, member)
        )
        key = group.key("train", position + offset, attempt)
        hop = Hop(member, f"{request.run_id}/{request.round}/{request.group}/{position + offset}.{attempt}")
        work = Train(start, hop.model_id, request.training, request.reveal)
        chain.append(Declared(hop, start, group.submit(member, key, work)))
        last = hop
    return chain


def _let_go(group: Group, trail: list[Hop]) -> None:
    """Releases what no recovery can need: all but the last model and the last one that another node holds."""
    held = [hop for hop in trail if group.holds(hop.model_id)]
    needed = held[-1:] + [hop for hop in held if hop.member.node != trail[-1].member.node][-1:]
    group.release([hop.model_id for hop in held if hop not in needed])


def _roll_back(group: Group, trail: list[Hop]) -> list[Hop]:
    """Cuts the trail back to the last model that is still held; returns the hops cut off, oldest first."""
    lost: list[Hop] = []
    while trail and not group.holds(trail[-1].model_id):
        lost.insert(0, trail.pop())
    return lost


def _note_reroute(group: Group, declared: Declared, source: Source | None) -> None:
    wanted = declared.start.sources[0]
    if source is not None and wanted.kind is SourceKind.NODE and source.kind is SourceKind.MANAGER:
        reason = f"node {wanted.name} could not be reached at {wanted.address}: by way of the manager"
        group.rerouted(declared.hop.member, reason)


def _no_model(member: Member) -> Failure:
    return Failure(FailureCode.BAD_ORDER, f"node {member.node} reported no model for its training order")
