"""Members that report progress and never finish: they are skipped, and the run goes on. Slow members are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from fedgsp.messages import (
    Describe,
    Described,
    Done,
    Evaluate,
    Failure,
    FailureCode,
    Initialise,
    Member,
    Order,
    OrderKey,
    OrderProgress,
    Progress,
    RelayMode,
    RunGroupRequest,
    SendUp,
    Start,
    Train,
    TrainingSettings,
)
from group_manager.deadline import LEAST_STALLS, LONGER_ORDERS, MOST_S, PATIENCE, UNKNOWN, Deadlines, Need, need
from group_manager.members import Members
from group_manager.sessions import PendingOrder, Session
from tests.support.clock import Clock
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, relayed, scene
from tests.support.scripted import STALL_TIMEOUT_S, let_others_run

STALL_S = 60.0
#: Progress comes before the stall clock runs out.
BETWEEN_S = 0.9 * STALL_TIMEOUT_S


@asynccontextmanager
async def only_progress(play: Scene, node: str, held: int, after: Sequence[int] = ()) -> AsyncIterator[list[float]]:
    """The node reports progress until its held client is skipped, once the clients of `after` are done.

    Yields the seconds that passed.
    """
    passed: list[float] = []

    async def report() -> None:
        await play.holding.wait()
        for client in after:
            await play.answered[client].wait()
        mark = 0
        while not play.told[held].is_set():
            session = play.nodes[node]._session
            assert session is not None
            mark += 1
            play.members.report(session, Progress(tuple(OrderProgress(key, mark) for key in [*session.pending])))
            play.clock.advance(BETWEEN_S)
            passed.append(BETWEEN_S)
            await let_others_run()

    reporting = asyncio.create_task(report())
    try:
        yield passed
    finally:
        reporting.cancel()


@pytest.mark.parametrize("held", [0, 1, 3])
async def test_a_relay_goes_on_without_a_member_that_reports_nothing_but_progress(held: int) -> None:
    members = hosted(n1=[0, 2], n2=[1], n3=[3])
    evil = next(member.node for member in members if member.client == held)
    async with scene(Faults().hold_for_good(held)) as play:
        await play.attach(members)
        async with only_progress(play, evil, held) as passed:
            outcome = await play.run(members)
        # A node that has other clients answers for them, too: they are held up by nothing.
        left = [client for client in range(4) if client not in play.skipped]
        assert await play.result(outcome) == relayed(left)
        assert held in play.skipped
        failure = play.skipped[held]
        assert failure is not None
        assert failure.code is FailureCode.STALLED
        assert "reported progress, but did not finish" in failure.detail
        assert sum(passed) < MOST_S


async def test_a_parallel_group_goes_on_without_it() -> None:
    members = hosted(n1=[0, 2], n2=[1], n3=[3])
    async with scene(Faults().hold_for_good(1)) as play:
        await play.attach(members)
        async with only_progress(play, "n2", 1, after=(0, 2, 3)) as passed:
            await play.run(members, "parallel")
        assert list(play.skipped) == [1]
        assert play.done == [0, 2, 3]
        # Others were quick, so that the shortest deadline held.
        assert sum(passed) <= (LEAST_STALLS + 2) * STALL_TIMEOUT_S


async def test_a_slow_member_may_take_far_longer_than_the_stall_timeout() -> None:
    members = hosted(n1=[0, 2], n2=[1])
    async with scene(Faults().crawl(0).crawl(1).crawl(2)) as play:
        assert await play.result(await play.run(members)) == relayed(range(3))
        assert not play.skipped


# --- one order


async def opened(given: Need) -> tuple[Members, Clock, Session, PendingOrder]:
    members, clock = Members(), Clock()
    session = await members.attach("n1")
    pending = members.submit("n1", Order(OrderKey(1, "train", 0, 0), 3, Describe()), given)
    return members, clock, session, pending


async def test_marks_that_jump_or_crawl_hold_an_order_no_longer_than_its_work_can_take() -> None:
    for step in (1, 1 << 40):
        members, clock, session, pending = await opened(Need(1, 20))
        waiting = asyncio.create_task(members.outcome(pending, STALL_S))
        await let_others_run()
        mark, passed = 0, 0.0
        while not waiting.done():
            mark += step
            members.report(session, Progress((OrderProgress(pending.key, mark),)))
            clock.advance(0.9 * STALL_S)
            passed += 0.9 * STALL_S
            await let_others_run()
            assert passed < 21 * STALL_S
        failure = waiting.result()
        assert isinstance(failure, Failure)
        assert failure.code is FailureCode.STALLED


async def test_reports_beyond_the_work_of_an_order_do_not_keep_it_alive() -> None:
    members, clock, session, pending = await opened(Need(1, 1))
    waiting = asyncio.create_task(members.outcome(pending, STALL_S))
    await let_others_run()
    for mark in range(pending.need.reports + 10):
        members.report(session, Progress((OrderProgress(pending.key, mark),)))
    assert pending.reports == pending.need.reports
    clock.advance(STALL_S + 1)
    await let_others_run()
    assert isinstance(waiting.result(), Failure)


async def test_the_deadline_of_an_order_in_turn_begins_with_its_turn() -> None:
    members, clock, session, pending = await opened(Need(1, 10))
    clock.advance(1_000_000.0)  # other hops of its relay
    waiting = asyncio.create_task(members.outcome(pending, STALL_S))
    await let_others_run()
    clock.advance(0.9 * STALL_S)
    await let_others_run()
    members.report(session, Done(pending.key, Described((1,))))
    assert await waiting == Described((1,))


# --- what is given


MANY = Need(least=100, most=10_000, clients=100)
ME, OTHER = ("train", "n1", 1), ("train", "n2", 2)


def test_an_order_without_any_measurement_gets_the_stall_timeout_for_each_of_its_steps() -> None:
    assert Deadlines().deadline_s(ME, Need(10, 100), STALL_S) == 100 * STALL_S
    assert Deadlines().deadline_s(ME, UNKNOWN, STALL_S) == MOST_S
    assert Deadlines().deadline_s(ME, Need(1, 1), STALL_S) == LEAST_STALLS * STALL_S


def test_a_client_that_was_never_measured_may_be_a_hundred_times_slower_than_all_others() -> None:
    deadlines = Deadlines()
    deadlines.note(OTHER, 100.0, MANY)  # a second per step
    assert deadlines.deadline_s(ME, Need(10, 200), STALL_S) == 200 * STALL_S  # still the lower one
    deadlines = Deadlines()
    deadlines.note(OTHER, 1.0, MANY)
    assert deadlines.deadline_s(ME, MANY, STALL_S) == pytest.approx(100 * 0.01 * 10_000)


def test_a_client_that_was_measured_may_become_twenty_times_slower() -> None:
    deadlines = Deadlines()
    deadlines.note(ME, 10.0, MANY)
    deadlines.note(OTHER, 1000.0, MANY)
    assert deadlines.deadline_s(ME, MANY, STALL_S) == pytest.approx(20 * 0.1 * 10_000)
    deadlines.note(ME, 20.0, MANY)
    assert deadlines.deadline_s(ME, MANY, STALL_S) == pytest.approx(20 * 0.2 * 10_000)


def test_a_node_that_ends_each_order_just_before_its_deadline_gets_no_more_time_each_time() -> None:
    honest = [("train", f"honest-{number}", number) for number in range(3)]
    evil = [("train", "evil-1", 8), ("train", "evil-2", 9)]
    alone, among = Deadlines(), Deadlines()
    for deadlines, others in ((alone, []), (among, honest)):
        for whose in others:
            deadlines.note(whose, 1.0, MANY)
        for whose in evil[: 1 + bool(others)]:
            deadlines.note(whose, 1.0, MANY)
        given = []
        for _ in range(50):
            for whose in evil[: 1 + bool(others)]:
                given.append(deadlines.deadline_s(whose, MANY, STALL_S))
                deadlines.note(whose, given[-1] - 1.0, MANY)
            for whose in others:
                deadlines.note(whose, 1.0, MANY)
        most_s = 100 * 0.01 * MANY.most  # of its first pace
        assert max(given) <= most_s < MOST_S
        # Nor does it get more where each order is late once, and in time after that.
        given = []
        for _ in range(50):
            given.append(deadlines.deadline_s(evil[0], MANY, STALL_S))
            deadlines.note_overdue(evil[0])
            given.append(deadlines.deadline_s(evil[0], MANY, STALL_S))
            deadlines.note(evil[0], given[-1] - 1.0, MANY)
        assert sum(seconds > most_s for seconds in given) <= LONGER_ORDERS


def test_a_client_with_far_more_samples_than_others_of_its_node_is_measured_by_itself() -> None:
    deadlines = Deadlines()
    deadlines.note(OTHER, 1.0, Need(10, 100))
    deadlines.note(ME, 1.0, Need(10, 100))
    large, many = ("train", "n1", 5), Need(10_000, 100_000)
    deadlines.note(large, 1000.0, many)
    assert deadlines.deadline_s(large, many, STALL_S) >= 20 * 1000.0


def test_samples_that_a_node_claims_to_have_give_it_no_more_time_than_the_longest_order_so_far() -> None:
    deadlines = Deadlines()
    deadlines.note(OTHER, 2.0, Need(100, 200))
    honest, liar = (deadlines.deadline_s(ME, Need(100, most), STALL_S) for most in (200, 1 << 40))
    assert honest == liar == pytest.approx(100 * 2 * 2.0)
    assert deadlines.deadline_s(ME, Need(100, 1 << 40, clients=7), STALL_S) == pytest.approx(7 * 100 * 2 * 2.0)


def test_a_node_that_comes_back_is_forgiven_once() -> None:
    deadlines = Deadlines()
    for chances in (True, False, False):
        for _ in range(1 + LONGER_ORDERS):
            deadlines.note_overdue(ME)
        deadlines.forget("n1")
        assert (deadlines.deadline_s(ME, MANY, STALL_S) > LEAST_STALLS * STALL_S) is chances


def test_a_node_that_was_overdue_gets_the_shortest_time_until_it_ends_an_order_well_or_returns() -> None:
    mends: list[Callable[[Deadlines], None]] = [lambda it: it.note(ME, 100.0, MANY), lambda it: it.forget("n1")]
    for mend in mends:
        deadlines = Deadlines()
        deadlines.note_overdue(ME)
        assert deadlines.deadline_s(("train", "n1", 7), MANY, STALL_S) == LEAST_STALLS * STALL_S
        assert deadlines.deadline_s(OTHER, MANY, STALL_S) > LEAST_STALLS * STALL_S
        mend(deadlines)
        assert deadlines.deadline_s(ME, MANY, STALL_S) > LEAST_STALLS * STALL_S


def test_a_node_that_is_far_slower_than_a_fast_one_gets_two_longer_attempts() -> None:
    """One node that is quick, or says so, does not get all others left out for good."""
    deadlines = Deadlines()
    deadlines.note(OTHER, 0.001, MANY)
    given = []
    for _ in range(4):
        given.append(deadlines.deadline_s(ME, MANY, STALL_S))
        deadlines.note_overdue(ME)
    assert given == [LEAST_STALLS * STALL_S * times for times in (1, PATIENCE, PATIENCE**2, 1)]
    deadlines.note(ME, 50.0, MANY)
    assert deadlines.deadline_s(ME, MANY, STALL_S) > 50.0


def test_what_an_order_needs_follows_from_the_samples_of_its_client_and_of_its_node() -> None:
    settings = TrainingSettings("sgd", 5, 10, 0.1, 0)
    members = (
        Member(0, "n1", "", 100, node_clients=3, node_samples=1_000),
        Member(1, "n1", "", 15, node_clients=3, node_samples=1_000),
    )
    request = RunGroupRequest("run", 1, 0, "relay", members, None, "", RelayMode.AUTO, True, settings, 60.0, 1 << 20)
    train = Train(Start("start", ()), "made", settings)

    def of(client: int, work: object, node: str = "n1") -> Need:
        return need(request, node, Order(None, client, work))  # type: ignore[arg-type]

    assert of(0, train).least == 1 + 5 * 10
    assert of(1, train).least == 1 + 5 * 2
    assert of(0, train).most == of(1, train).most >= 2 * 5 * 100
    assert of(0, Evaluate(Start("start", ()), settings=settings)).most >= 100
    for work in (Describe(), Initialise("made", 1), SendUp("made")):
        assert of(0, work).most >= 3
    assert of(0, train, "n2").most == of(0, train).most  # a node outside the group that holds a model
    assert need(replace(request, members=()), "n1", Order(None, 0, train)) == UNKNOWN
