"""One group's part of a round: what it is asked, what is known when it begins, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedgsp.messages import (
    Discrimination,
    Failure,
    FailureCode,
    FinishedHop,
    GroupResult,
    MemberDone,
    MemberSkipped,
    Results,
    Reveal,
    Trained,
)
from fedgsp.weights import Weights
from top_server.groups.moved import Moved
from top_server.models import Held

if TYPE_CHECKING:
    from top_server.managers.pool import Manager

#: Programs in which members train.
TRAINS = ("relay", "parallel", "alone")
#: Why something fails whose nodes, or whose manager, are lost; it can be tried again when they are back.
LOST = {FailureCode.NODE_LOST, FailureCode.UNREACHABLE, FailureCode.STALLED, FailureCode.CUT_SHORT}


@dataclass(frozen=True, slots=True)
class GroupTask:
    """What one group is asked to do."""

    number: int
    program: str
    clients: tuple[int, ...]
    #: The models that the group's start is the mean of, with their weights; one alone is the start itself.
    starts: tuple[tuple[Held, float], ...] = ()
    #: Starts of single members, in place of the group's.
    own_starts: Mapping[int, Held] = field(default_factory=dict)
    #: How members count in the group's mean; by their training samples unless given.
    weights: Mapping[int, float] = field(default_factory=dict)
    results: Results = Results.UNSPECIFIED
    reveal: Reveal | None = None
    local_epochs: int | None = None
    #: In place of the scheme's training, with its options.
    training: str | None = None
    discrimination: Discrimination | None = None
    #: The largest model that the manager may take from a node, if larger than the task's.
    max_bytes: int = 0
    #: Client -> number of its group, where groups of one client share this task; their order is that of `clients`.
    groups_of_one: Mapping[int, int] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of the groups that this task trains."""
        return tuple(self.groups_of_one.values()) or (self.number,)


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of a group's part of a round when a manager begins with it: nothing, but after a loss."""

    #: Managers that were lost with it.
    attempt: int = 0
    #: Hops of a relay, in order; whether their models are still there their nodes say.
    finished: tuple[FinishedHop, ...] = ()
    #: Members that were skipped: they would train out of their turn.
    skipped: tuple[MemberSkipped, ...] = ()
    #: By members of those managers.
    moved: Moved = field(default_factory=Moved)

    @property
    def clients(self) -> set[int]:
        """Those of whom nothing more is asked, unless their results are lost."""
        left_out = {skipped.client for skipped in self.skipped}
        return left_out | {hop.member.client for hop in self.finished if hop.member is not None}

    def after(self, outcome: GroupOutcome) -> Trace:
        """What the next manager is told, if the one of this outcome was lost."""
        skipped = outcome.skipped if outcome.task.program in TRAINS else ()
        return Trace(self.attempt + 1, outcome.hops, skipped, outcome.moved)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a group did: its result or why there is none, and what its members reported."""

    task: GroupTask
    manager: Manager
    result: GroupResult | Failure
    done: tuple[MemberDone, ...]
    skipped: tuple[MemberSkipped, ...]
    #: Why clients' models had no part in the group's start.
    lost: Mapping[int, Failure] = field(default_factory=dict)
    #: Members' own models, where these are collected, or why one could not be had.
    models: Mapping[int, Weights | Failure] = field(default_factory=dict)
    #: The hops of a relay behind its result, or so far.
    hops: tuple[FinishedHop, ...] = ()
    #: What was known when its manager began.
    trace: Trace = field(default_factory=Trace)

    @property
    def samples(self) -> int:
        """Training samples behind the group's model."""
        return self.result.samples if isinstance(self.result, GroupResult) else 0

    @property
    def moved(self) -> Moved:
        """Bytes of weights, those under managers that were lost included."""
        if isinstance(self.result, GroupResult):
            return self.trace.moved + Moved.as_told(self.result)
        return self.trace.moved + Moved.by(done.result for done in self.done if done.result is not None)

    @property
    def left_out(self) -> set[int]:
        """Clients that are not in the result, some of them because it was lost with their node."""
        return {skipped.client for skipped in self.skipped}

    @property
    def failures(self) -> list[Failure | None]:
        """Why there is no result, and why members took no part."""
        why = [self.result] if isinstance(self.result, Failure) else []
        return [*why, *(skipped.failure for skipped in self.skipped)]

    @property
    def took_part(self) -> set[int]:
        """Clients that are; one that had to train again counts once."""
        before = {hop.member.client for hop in self.hops if hop.member is not None}
        return (before | {done.client for done in self.done}) - self.left_out

    def failed_groups(self, failure: Failure | None) -> dict[int, Failure]:
        """Number -> reason of each group without a result; `failure` is the reason of the whole task, if it failed."""
        if failure is not None:
            return dict.fromkeys(self.task.groups, failure)
        alone = self.task.groups_of_one
        skipped = [one for one in self.skipped if one.client in alone]
        return {alone[one.client]: one.failure or Failure(FailureCode.UNSPECIFIED, "skipped") for one in skipped}

    @property
    def update_lengths(self) -> list[float]:
        """Of the updates behind the result that were looked at, in order."""
        lengths = {hop.member.client: hop.update_length for hop in self.hops if hop.member is not None}
        lengths |= {done.client: done.update_length for done in self.done}
        return [found for client, found in sorted(lengths.items()) if found and client in self.took_part]

    @property
    def own_models(self) -> dict[int, Held]:
        """What the members trained, where it stays with them."""
        return {
            done.client: Held(done.result.ref, done.client)
            for done in self.done
            if isinstance(done.result, Trained) and done.result.ref is not None
        }

    @property
    def manager_lost(self) -> bool:
        """Whether the manager, not the group, is why there is no result."""
        return isinstance(self.result, Failure) and self.result.code is FailureCode.UNREACHABLE
