"""A relay that loses its manager, or its top server, at any moment has the result that it would have had without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupEvent,
    MemberDone,
    MemberSkipped,
    ModelRef,
    Rerouted,
    RunGroupRequest,
    Trained,
)
from group_manager.chain import Chain, Decision
from tests.support.events import some
from tests.support.real_manager import request
from tests.support.recorder import Recorder
from tests.support.scene import hosted
from top_server.groups.task import Trace
from top_server.groups.watch import GroupWatch
from top_server.progress import Progress
from top_server.record.audit import NO_AUDIT
from top_server.record.events import read
from top_server.record.events.rounds import RoundStarted
from top_server.resume.find import _interrupted

CLIENTS = tuple(range(6))
MEMBERS = tuple(hosted(n1=[0, 2, 4], n2=[1, 3, 5]))
FAILS = Failure(FailureCode.TASK_RAISED, "the camera broke")
BAD = Failure(FailureCode.NOT_FINITE, "not a number")
LENGTHS = st.sampled_from([0.0, 1.0, 1.2, 4.0, 6.0, 20.0, 100.0])


@dataclass
class Relay:
    """What its members do, whenever they do it, and all that was told of it."""

    #: Lengths of updates by the member and the member before it; the last row is for the begin of the relay.
    lengths: Sequence[Sequence[float]]
    #: Lengths of the rounds before.
    earlier: Sequence[float] = ()
    #: Clients that cannot train, and clients whose models their readers find to be bad.
    fail: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    journal: Recorder = field(default_factory=Recorder)
    #: Id of a model -> the clients that have trained it, in order.
    behind: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.journal.record(some(RoundStarted, round=1, teams=[CLIENTS]))

    def asked(self, trace: Trace) -> RunGroupRequest:
        left_out = {skipped.client for skipped in trace.skipped}
        return replace(
            request("relay", members=tuple(one for one in MEMBERS if one.client not in left_out), shuffle=False),
            planned=CLIENTS,
            attempt=trace.attempt,
            finished=trace.finished,
            most_update_ratio=5.0,
            update_lengths=tuple(self.earlier),
        )

    def watched(self, asked: RunGroupRequest, trace: Trace) -> GroupWatch:
        membership = SimpleNamespace(note_offence=lambda _: None, certificate=lambda _: b"")
        context: Any = SimpleNamespace(journal=self.journal, audit=NO_AUDIT, membership=membership)
        manager: Any = SimpleNamespace(name="m0")
        return GroupWatch(context, Progress(), asked, manager, trace)

    def walk(self, chain: Chain, attempt: int) -> Iterator[GroupEvent]:
        """What a manager reports as it walks the chain."""
        for again in itertools.count(1000 * attempt):
            chain.declare(again)
            decision = None
            while decision is None and (hop := chain.next) is not None:
                last, client = chain.last, hop.member.client
                if last is not None and last.member.client in self.bad:
                    decision = chain.refuse(last, BAD)
                elif client in self.fail:
                    decision = chain.refuse(hop, FAILS)
                else:
                    decision = chain.judge(self.lengths[last.member.client if last is not None else -1][client])
                if decision is None:
                    self.behind[hop.model_id] = (*(self.behind[last.model_id] if last is not None else ()), client)
                    chain.finish(hop.member.samples, b"")
                    ref = ModelRef(hop.model_id)
                    trained = Trained(ref, hop.member.samples)
                    yield GroupEvent(MemberDone(client, chain.done - 1, trained, update_length=hop.length))
            if decision is None and chain.last is not None and chain.last.member.client in self.bad:
                decision = chain.refuse(chain.last, BAD)
            if decision is None:
                return
            yield from told(decision)

    def play(self, cuts: Sequence[tuple[int, bool]] = ()) -> tuple[list[tuple[int, float]], set[int]]:
        """The members behind the result with the lengths of their updates, and the members that were skipped.

        After so many reports of a manager, it is lost, or, if the second value is true, the top server is killed.
        """
        trace = Trace()
        for most, killed in (*cuts, (None, False)):
            asked = self.asked(trace)
            chain, watch = Chain(asked), self.watched(asked, trace)
            for event in itertools.islice(self.walk(chain, trace.attempt), most):
                watch(event)
            if killed:
                interrupted = _interrupted(map(read, self.journal.events), 1, trace.attempt + 1)
                assert interrupted is not None
                (trace,) = interrupted.traces
            else:
                trace = Trace(trace.attempt + 1, tuple(watch.hops), tuple(watch.skipped))
            finished = tuple(hop.member.client for hop in trace.finished if hop.member is not None)
            for number, hop in enumerate(trace.finished, 1):
                assert hop.model is not None
                assert self.behind[hop.model.id] == finished[:number]
        behind = [(hop.member.client, hop.length) for hop in chain.trail]
        return behind, {event["client"] for event in self.journal.of_kind("client_skipped")}


def told(decision: Decision) -> Iterator[GroupEvent]:
    for member, why in decision.reports:
        client = member.client
        yield GroupEvent(MemberSkipped(client, why) if isinstance(why, Failure) else Rerouted(client, why))


#: The first update is a hundred times as long as all others: it is refused when the third one is there.
FAR_OUT = [[100.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 7
NOBODY = frozenset[int]()


@example(FAR_OUT, [], NOBODY, NOBODY, [(2, False)])
@example(FAR_OUT, [], NOBODY, NOBODY, [(2, True)])
@example(FAR_OUT, [], NOBODY, NOBODY, [(3, False)])
@example(FAR_OUT, [], NOBODY, NOBODY, [(3, True)])
@given(
    lengths=st.lists(st.lists(LENGTHS, min_size=6, max_size=6), min_size=7, max_size=7),
    earlier=st.lists(LENGTHS, max_size=4),
    fail=st.frozensets(st.sampled_from(CLIENTS), max_size=2),
    bad=st.frozensets(st.sampled_from(CLIENTS), max_size=2),
    cuts=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=3),
)
def test_wherever_a_relay_is_cut_off_the_same_updates_are_refused(
    lengths: list[list[float]],
    earlier: list[float],
    fail: frozenset[int],
    bad: frozenset[int],
    cuts: list[tuple[int, bool]],
) -> None:
    assert Relay(lengths, earlier, fail, bad).play(cuts) == Relay(lengths, earlier, fail, bad).play()
