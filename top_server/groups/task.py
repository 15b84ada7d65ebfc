"""The work of one group: its task, what is known when a manager begins with it, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from fedgsp.programs import PROGRAMS
from fedgsp.tensors.weights import Weights
from top_server.groups.lost import LOST
from top_server.groups.moved import NOTHING, Moved
from top_server.managers.client import BrokenOff
from top_server.managers.pool import Manager
from top_server.models import Held

#: Of a member that was skipped for no reason that its manager tells.
_NO_REASON = Failure(FailureCode.UNSPECIFIED, "skipped")


@dataclass(frozen=True, slots=True)
class GroupTask:
    """What one group is asked to do."""

    number: int
    #: The name of a row of `fedgsp.programs`.
    program: str
    clients: tuple[int, ...]
    #: Models with their weights: the group starts from their mean, or from the model itself if there is only one.
    starts: tuple[tuple[Held, float], ...] = ()
    #: Models that single members start from, in place of the group's.
    own_starts: Mapping[int, Held] = field(default_factory=dict)
    #: How members count in the group's mean. Where members are weighed, a client that is missing here takes no part.
    weights: Mapping[int, float] = field(default_factory=dict)
    #: The training samples of the clients that `weights` has, as they were when these were computed.
    samples: Mapping[int, int] = field(default_factory=dict)
    results: Results = Results.UNSPECIFIED
    reveal: Reveal | None = None
    local_epochs: int | None = None
    #: A local training in place of the scheme's; it gets no options.
    training: str | None = None
    discrimination: Discrimination | None = None
    #: The largest model that the manager may take from a node, where it may be larger than a model of the run.
    max_bytes: int = 0
    #: Client -> number of its group of one, if such groups share this task; in the order of `clients`.
    groups_of_one: Mapping[int, int] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of the groups that this task trains: several if they are groups of one client, else one."""
        return tuple(self.groups_of_one.values()) or (self.number,)

    def lacks(self, client: int, samples: int) -> str:
        """Why a client cannot take part that is there, with so many training samples; empty if it can.

        It may have come back after the task was made. What was not known of it then is not invented now.
        """
        program = PROGRAMS[self.program]
        if program.needs_start and not self.starts and client not in self.own_starts:
            return "when its group was planned, no model was known that it could start from"
        if not program.weighs:
            return ""
        if client not in self.weights:
            return "too little was known of it when its group was planned, so that it has no weight in the mean"
        if (before := self.samples.get(client, samples)) != samples:
            return f"it had {before} training samples when its group was planned, and has come back with {samples}"
        return ""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a group did under earlier managers, at which it broke off; nothing under the first one."""

    #: Numbers the managers on which the group is tried.
    attempt: int = 0
    #: Finished hops of a relay, in order. The nodes know whether their models still exist.
    finished: tuple[FinishedHop, ...] = ()
    #: Members that were skipped. They are not tried again, since they would train out of their turn.
    skipped: tuple[MemberSkipped, ...] = ()
    #: Weights that members moved under the earlier managers.
    moved: Moved = NOTHING

    def after(self, outcome: GroupOutcome) -> Trace:
        """The trace for the next manager if the group broke off at the manager of this outcome."""
        skipped = outcome.skipped if PROGRAMS[outcome.task.program].trains else ()
        return Trace(self.attempt + 1, outcome.hops, skipped, outcome.moved)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A round that an earlier top server of the run had begun: its groups, and what each had done."""

    round: int
    teams: tuple[tuple[int, ...], ...]
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a group did: its result, or the failure in its place, and what its members reported."""

    task: GroupTask
    manager: Manager
    result: GroupResult | Failure
    done: tuple[MemberDone, ...]
    skipped: tuple[MemberSkipped, ...]
    #: Clients whose models are missing in the group's start, with the reasons.
    lost: Mapping[int, Failure] = field(default_factory=dict)
    #: If members' own models are collected: each of them, or the reason why it did not come.
    models: Mapping[int, Weights | Failure] = field(default_factory=dict)
    #: The hops of a relay that are behind its result, or that are finished so far.
    hops: tuple[FinishedHop, ...] = ()
    #: The trace that its manager began with.
    trace: Trace = field(default_factory=Trace)
    #: Set if the call that ran the group broke off, so that there is no result; or if its manager does not give one of
    #: `models`.
    broken_off: BrokenOff | None = None

    @property
    def moved(self) -> Moved:
        """Bytes of weights that were moved, including those moved under managers that were lost."""
        if isinstance(self.result, GroupResult):
            told = self.result
            return self.trace.moved + Moved(told.bytes_direct, told.bytes_relayed, told.bytes_travelled)
        return self.trace.moved + Moved.by(done.result for done in self.done if done.result is not None)

    @property
    def left_out(self) -> set[int]:
        """Clients that were skipped."""
        return {skipped.client for skipped in self.skipped}

    @property
    def out_of_reach(self) -> set[int]:
        """Clients that did nothing because they were lost, or because the task failed before they had answered.

        Their nodes may still hold their models: a manager that is lost, or full, says nothing about any client.
        """
        return self.unanswered.keys() - self.refused

    @property
    def refused(self) -> set[int]:
        """Clients that were skipped, and not because they were lost."""
        return {one.client for one in self.skipped if (one.failure or _NO_REASON).code not in LOST}

    @property
    def failures(self) -> list[Failure]:
        """The failure in place of a result, and the failures of members that were skipped."""
        why = [self.result] if isinstance(self.result, Failure) else []
        return [*why, *(skipped.failure or _NO_REASON for skipped in self.skipped)]

    @property
    def unanswered(self) -> dict[int, Failure]:
        """Client -> why it did not do what it was asked."""
        result, done = self.result, {done.client for done in self.done}
        why = dict.fromkeys(set(self.task.clients) - done, result) if isinstance(result, Failure) else {}
        return why | {skipped.client: skipped.failure or _NO_REASON for skipped in self.skipped}

    @property
    def took_part(self) -> set[int]:
        """Clients whose training is in the result; a client that trained twice counts once.

        Without its one model, a group has nothing of what its members trained. Of a task that makes none, each member
        has a result of its own.
        """
        if isinstance(self.result, Failure) and PROGRAMS[self.task.program].makes_model:
            return set()
        before = {hop.member.client for hop in self.hops if hop.member is not None}
        return before.union(done.client for done in self.done) - self.left_out

    @property
    def missed(self) -> set[int]:
        """Clients whose training is in no result: they were skipped, or their group failed."""
        return set(self.task.clients) - self.took_part

    def failed_groups(self, failure: Failure | None) -> dict[int, Failure]:
        """Number -> reason of each group without a result.

        `failure` is the reason of the whole task, if nothing of it counts. A task of clients that train alone may fail
        when some of them have trained: these have results.
        """
        if failure is not None:
            return dict.fromkeys(self.task.groups, failure)
        alone = self.task.groups_of_one
        return {alone[client]: why for client, why in sorted(self.unanswered.items()) if client in alone}

    @property
    def update_lengths(self) -> list[float]:
        """Norms of the updates behind the result, in the order of the clients; only updates that were measured."""
        lengths = {hop.member.client: hop.update_length for hop in self.hops if hop.member is not None}
        lengths |= {done.client: done.update_length for done in self.done}
        return [found for client, found in sorted(lengths.items()) if found and client in self.took_part]

    @property
    def own_models(self) -> dict[int, Held]:
        """The models that members trained, as held by their nodes."""
        return {
            done.client: Held(done.result.ref, done.client)
            for done in self.done
            if isinstance(done.result, Trained) and done.result.ref is not None
        }
