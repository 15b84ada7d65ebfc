"""The chain of a relay: what follows from each failure, whatever has happened before."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedgsp.messages import Failure, FailureCode, FinishedHop, ModelRef
from group_manager.chain import MOST_LOSSES, Chain, Decision, HopState
from tests.support.real_manager import request
from tests.support.scene import hosted

MEMBERS = tuple(hosted(n1=[0, 2, 4], n2=[1, 3, 5]))
RELAY = request("relay", members=MEMBERS, shuffle=False)
LIMITED = replace(RELAY, most_update_ratio=5.0)
BAD = Failure(FailureCode.NOT_FINITE, "not a number")


def trained(*lengths: float, earlier: tuple[float, ...] = ()) -> Chain:
    """A chain that limits lengths, and whose first members have made updates of these lengths, each of them taken."""
    chain = Chain(replace(LIMITED, update_lengths=earlier))
    chain.declare(0)
    for length in lengths:
        assert chain.judge(length) is None
        chain.finish(1, b"")
    return chain


def refused(decision: Decision | None) -> list[int]:
    """The clients that a decision skips."""
    return [member.client for member, why in decision.reports if isinstance(why, Failure)] if decision else []


def walked(done: int) -> Chain:
    """A chain of which so many members have trained."""
    chain = Chain(RELAY)
    chain.declare(0)
    for hop in chain.hops[:done]:
        chain.finish(hop.member.client + 1, b"")
        assert chain.last is hop
    return chain


def clients(chain: Chain) -> tuple[list[int], list[int]]:
    """Clients of the trail, and of the hops that are still to be made."""
    ids = [hop.member.client for hop in chain.hops]
    return ids[: chain.done], ids[chain.done :]


def nothing(_: str) -> bool:
    return False


def everything(_: str) -> bool:
    return True


# --- the course without failures


def test_every_hop_is_declared_after_the_one_before() -> None:
    declared = Chain(RELAY).declare(7)
    assert [position for position, _, _ in declared] == list(range(6))
    assert [hop.model_id for _, _, hop in declared] == [f"run/1/0/relay/{position}.7" for position in range(6)]
    assert declared[0][1] is None
    assert all(before is declared[position - 1][2] for position, before, _ in declared[1:])


def test_a_chain_of_another_manager_goes_on_after_its_trail() -> None:
    hop = FinishedHop(replace(MEMBERS[3], samples=9), ModelRef("made"))
    chain = Chain(replace(RELAY, finished=(hop,)))
    assert clients(chain) == ([3], [0, 1, 2, 4, 5])
    assert chain.trail[0].samples == 9
    ((position, before, following), *_) = chain.declare(1)
    assert (position, before, following.member) == (1, chain.last, MEMBERS[0])


# --- failures


def test_a_member_that_fails_is_skipped_with_the_reason() -> None:
    chain = walked(2)
    assert chain.next is not None
    decision = chain.refuse(chain.next, BAD)
    assert (decision.reports, decision.release) == (((MEMBERS[2], BAD),), ())
    assert clients(chain) == ([0, 1], [3, 4, 5])


def test_a_bad_model_takes_its_maker_out_and_the_next_member_trains_from_the_one_before() -> None:
    chain = walked(3)
    assert chain.last is not None
    made = chain.last.model_id
    decision = chain.refuse(chain.last, BAD)
    assert decision.release == (made,)
    assert decision.reports[0] == (MEMBERS[2], BAD)
    assert decision.reports[1][0] == MEMBERS[3]
    assert "client 2's model was refused" in str(decision.reports[1][1])
    assert clients(chain) == ([0, 1], [3, 4, 5])


def test_a_bad_last_model_of_the_whole_chain_reroutes_nobody() -> None:
    chain = walked(6)
    assert chain.last is not None
    assert [member.client for member, _ in chain.refuse(chain.last, BAD).reports] == [5]


def test_members_that_trained_from_a_refused_model_train_again() -> None:
    chain = trained(100.0, 1.0)
    made = tuple(hop.model_id for hop in chain.trail)
    decision = chain.judge(1.1)
    assert decision is not None
    why = decision.reports[0][1]
    assert isinstance(why, Failure)
    assert why.code is FailureCode.LONG_UPDATE
    assert decision.release == made
    assert [member.client for member, _ in decision.reports] == [0, 1]
    assert clients(chain) == ([], [1, 2, 3, 4, 5])
    assert {hop.state for hop in chain.hops} == {HopState.WAITING}


def test_models_that_are_lost_with_a_node_that_is_gone_take_their_makers_out() -> None:
    chain = walked(3)
    first = chain.hops[0].model_id
    decision = chain.lose(lambda model_id: model_id == first, lambda node: node == "n1")
    assert decision is not None
    assert decision.reports[0] == (MEMBERS[2], "no node has its result any more: it trains again")
    assert decision.reports[1] == (MEMBERS[1], Failure(FailureCode.NODE_LOST, "its result was lost with its node"))
    assert clients(chain) == ([0], [2, 3, 4, 5])


def test_nothing_changes_while_the_last_model_is_held() -> None:
    chain = walked(3)
    last = chain.hops[2].model_id
    assert chain.lose(lambda model_id: model_id == last, nothing) is None
    assert clients(chain) == ([0, 1, 2], [3, 4, 5])


def test_a_member_whose_node_loses_every_result_is_skipped_in_the_end() -> None:
    chain = Chain(RELAY)
    for loss in range(1, MOST_LOSSES + 1):
        chain.declare(loss)
        chain.finish(1, b"")
        decision = chain.lose(nothing, everything)
        assert decision is not None
        assert isinstance(decision.reports[0][1], Failure) == (loss == MOST_LOSSES)
    assert clients(chain) == ([], [1, 2, 3, 4, 5])


# --- models that recovery may need


def test_the_last_model_and_the_last_at_another_node_are_kept() -> None:
    chain = walked(5)
    assert chain.spare(everything) == [f"run/1/0/relay/{position}.0" for position in range(3)]


def test_the_last_model_is_enough_when_the_next_node_has_fetched_it() -> None:
    chain = walked(4)
    assert chain.last is not None
    assert chain.next is not None
    chain.last.digest = b"what was made"
    chain.next.start = b"something else"
    assert chain.spare(everything) == [f"run/1/0/relay/{position}.0" for position in range(2)]
    chain.next.start = b"what was made"
    assert chain.spare(everything) == [f"run/1/0/relay/{position}.0" for position in range(3)]
    chain.declare(1)  # its order was called off, and with it what it had fetched
    assert chain.spare(everything) == [f"run/1/0/relay/{position}.0" for position in range(2)]


def test_no_model_is_spare_while_one_cannot_be_judged() -> None:
    chain = trained(1.0, 1.0)
    assert chain.spare(everything) == []
    assert chain.judge(1.0) is None
    chain.finish(1, b"")
    assert chain.spare(everything)


# --- how long updates may be


def test_the_first_updates_are_judged_together_as_soon_as_three_lengths_are_known() -> None:
    chain = trained(1.0, 100.0)
    assert not chain.is_judged
    assert refused(chain.judge(1.1)) == [1]


def test_with_the_lengths_of_earlier_rounds_every_update_is_judged_at_once() -> None:
    chain = trained(earlier=(1.0, 1.0, 1.0))
    assert chain.is_judged
    assert refused(chain.judge(100.0)) == [0]


def test_the_length_of_an_update_that_was_lost_counts_once() -> None:
    chain = trained(1.0, 1.0, 4.0)
    assert chain.last is not None
    last = chain.last
    assert chain.lose(lambda model_id: model_id != last.model_id, everything) is not None
    chain.declare(1)
    assert chain.judge(4.0) is None
    chain.finish(1, b"")
    assert refused(chain.judge(6.0)) == [3]  # the median is 1, and not that of 1, 1, 4 and 4


def test_who_left_the_chain_is_no_measure_for_those_who_stay() -> None:
    """Client 0 passed only because client 1, which is left out, made an even longer update."""
    chain = trained(100.0)
    assert chain.judge(1000.0) is None
    chain.finish(1, b"")
    assert refused(chain.judge(1.0)) == [1]
    chain.declare(1)
    assert chain.judge(1.0) is None
    chain.finish(1, b"")
    assert refused(chain.judge(1.1)) == [0]


# --- whatever happens


class Walk(RuleBasedStateMachine):
    """Any course of failures. `held` are the models that nodes hold."""

    @initialize(limited=st.booleans())
    def begin(self, limited: bool) -> None:
        self.limited = limited
        self.chain = Chain(LIMITED if limited else RELAY)
        self.held: set[str] = set()
        self.attempt = 0
        self.out: set[int] = set()
        self.declare()

    @rule()
    def declare(self) -> None:
        self.chain.declare(self.attempt)
        self.attempt += 1

    @precondition(lambda self: self.chain.next is not None and self.chain.next.state is HopState.DECLARED)
    @rule(length=st.sampled_from([1.0, 1.2, 100.0]))
    def train(self, length: float) -> None:
        assert self.chain.next is not None
        made = self.chain.next
        decision = self.chain.judge(length) if self.limited else None
        if decision is not None:
            self.carry_out(decision)
            return
        self.chain.finish(1, made.model_id.encode())
        assert made is self.chain.last
        self.held.add(made.model_id)
        self.release_spare()

    def release_spare(self) -> None:
        spare = self.chain.spare(self.held.__contains__)
        assert self.chain.last is None or self.chain.last.model_id not in spare
        self.held -= set(spare)

    @precondition(lambda self: self.chain.next is not None and self.chain.next.state is HopState.DECLARED)
    @rule(right=st.booleans())
    def fetch(self, right: bool) -> None:
        """The next node has fetched its start, and may tell of another one."""
        assert self.chain.next is not None
        last = self.chain.last
        self.chain.next.start = last.digest if right and last is not None else b"another"
        self.release_spare()

    @precondition(lambda self: self.chain.next is not None)
    @rule()
    def fail(self) -> None:
        assert self.chain.next is not None
        self.carry_out(self.chain.refuse(self.chain.next, BAD))

    @precondition(lambda self: self.chain.last is not None)
    @rule()
    def be_bad(self) -> None:
        assert self.chain.last is not None
        self.carry_out(self.chain.refuse(self.chain.last, BAD))

    @rule(node=st.sampled_from(["n1", "n2"]), back=st.booleans())
    def lose_node(self, node: str, back: bool) -> None:
        self.held -= {hop.model_id for hop in self.chain.trail if hop.member.node == node}
        self.carry_out(self.chain.lose(self.held.__contains__, lambda other: back or other != node))
        assert self.chain.last is None or self.chain.last.model_id in self.held

    def carry_out(self, decision: object) -> None:
        for member, why in getattr(decision, "reports", ()):
            assert isinstance(why, str) or member.client not in self.out  # skipped once
            if isinstance(why, Failure):
                self.out.add(member.client)
        self.held -= set(getattr(decision, "release", ()))

    @invariant()
    def every_member_is_in_the_chain_or_out_and_in_its_place(self) -> None:
        trail, remaining = clients(self.chain)
        assert [*trail, *remaining] == [client for client in range(6) if client not in self.out]

    @invariant()
    def those_who_have_trained_come_first(self) -> None:
        assert {hop.state for hop in self.chain.trail} <= {HopState.FINISHED}
        assert HopState.FINISHED not in {hop.state for hop in self.chain.hops[self.chain.done :]}

    @invariant()
    def no_model_is_let_go_while_the_trail_cannot_be_judged(self) -> None:
        assert self.chain.is_judged or self.chain.spare(self.held.__contains__) == []


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=50, stateful_step_count=25)
