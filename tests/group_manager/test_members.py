"""Sessions and orders: every order ends."""

from __future__ import annotations

import asyncio

import pytest

from fedgsp.messages import (
    Describe,
    Described,
    Done,
    Failed,
    Failure,
    FailureCode,
    Order,
    OrderKey,
    OrderProgress,
    Progress,
)
from group_manager.members import Members
from group_manager.sessions import Session
from tests.support.clock import Clock
from tests.support.scripted import let_others_run

KEY = OrderKey(1, "train", 0, 0)
ORDER = Order(KEY, 3, Describe())
RESULT = Described((1, 2))


def code(outcome: object) -> FailureCode:
    assert isinstance(outcome, Failure), outcome
    return outcome.code


async def test_an_order_reaches_the_node_and_its_report_ends_the_wait() -> None:
    members = Members()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    assert await session.outbox.get() == ORDER
    members.report(session, Done(KEY, RESULT))
    assert await members.outcome(pending, 30) == RESULT
    assert not session.pending


async def test_a_failure_ends_the_wait_as_a_value() -> None:
    members = Members()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    failure = Failure(FailureCode.TASK_RAISED, "ValueError")
    members.report(session, Failed(KEY, failure))
    assert await members.outcome(pending, 30) == failure


async def test_a_report_that_breaks_its_own_check_ends_the_wait_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> str:
        raise KeyError("bug")

    members = Members()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    monkeypatch.setattr("group_manager.members.flaw", broken)
    members.report(session, Done(KEY, RESULT))
    outcome = await members.outcome(pending, 30)
    assert code(outcome) is FailureCode.UNSPECIFIED
    assert "cannot be judged: KeyError" in str(outcome)
    assert "n1" in caplog.text


async def test_an_order_to_a_node_that_is_not_there_fails_at_once() -> None:
    pending = Members().submit("n1", ORDER)
    assert pending.outcome.done()
    assert code(pending.outcome.result()) is FailureCode.NODE_LOST


async def test_the_loss_of_a_node_ends_its_orders_and_no_others() -> None:
    members = Members()
    lost, alive = await members.attach("n1"), await members.attach("n2")
    ended, open_still = members.submit("n1", ORDER), members.submit("n2", ORDER)
    await members.detach(lost)
    assert code(await members.outcome(ended, 30)) is FailureCode.NODE_LOST
    assert not open_still.outcome.done()
    members.report(alive, Done(KEY, RESULT))
    assert await members.outcome(open_still, 30) == RESULT
    assert not members.attached("n1")
    assert members.attached("n2")


async def test_a_report_that_repeats_itself_changes_nothing() -> None:
    members = Members()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    members.report(session, Done(KEY, RESULT))
    members.report(session, Failed(KEY, Failure(FailureCode.STALLED, "late")))
    assert await members.outcome(pending, 30) == RESULT


@pytest.mark.parametrize("key", [None, OrderKey(1, "train", 0, 0, attempt=1), OrderKey(2, "train", 0, 0)])
async def test_a_report_that_names_no_open_order_changes_nothing(key: OrderKey | None) -> None:
    members = Members()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    members.report(session, Done(key, RESULT))
    members.report(session, Progress((OrderProgress(key, 1),)))
    assert not pending.outcome.done()


async def test_a_node_that_attaches_again_ends_its_older_session() -> None:
    members = Members()
    old = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    await old.outbox.get()
    new = await members.attach("n1")
    assert await old.outbox.get() is None
    assert code(pending.outcome.result()) is FailureCode.NODE_LOST
    await members.detach(old)  # its stream notices late
    assert members.attached("n1")
    assert new.outbox.empty()


async def test_two_streams_of_one_node_that_attach_together_leave_one_session() -> None:
    members = Members()
    await members.attach("n1")
    first, second = await asyncio.gather(members.attach("n1"), members.attach("n1"))
    members.submit("n1", ORDER)
    outcomes = [await session.outbox.get() for session in (first, second)]
    assert sorted(outcomes, key=str) == sorted([None, ORDER], key=str)


async def test_a_node_attaches_in_one_step_so_that_hanging_up_leaves_no_session_without_a_stream() -> None:
    members = Members()
    waiting = [asyncio.create_task(members.wait_for({"n1", "n2"}, 10)) for _ in range(2)]
    await let_others_run()
    with pytest.raises(StopIteration):  # it has not waited for anything
        members.attach("n1").send(None)
    for task in waiting:
        task.cancel()
    assert not any(isinstance(kept, asyncio.Condition) for kept in vars(members).values())  # others can hold its lock


async def test_an_old_sessions_report_does_not_end_the_new_sessions_order() -> None:
    members = Members()
    old = await members.attach("n1")
    members.submit("n1", ORDER)
    await members.attach("n1")
    again = members.submit("n1", ORDER)
    members.report(old, Done(KEY, RESULT))
    assert not again.outcome.done()


async def test_a_node_has_stayed_only_while_its_session_lasts() -> None:
    members = Members()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    members.report(session, Done(KEY, RESULT))
    assert members.stayed(pending)
    await members.detach(session)
    assert not members.stayed(pending)
    await members.attach("n1")
    assert not members.stayed(pending)
    assert not members.stayed(members.submit("n2", ORDER))


async def test_orders_without_an_outcome_are_sent_and_not_waited_for() -> None:
    members = Members()
    session = await members.attach("n1")
    members.tell("n1", ORDER)
    members.tell("n2", ORDER)
    assert await session.outbox.get() == ORDER
    assert not session.pending


async def test_an_order_without_progress_stalls() -> None:
    members, clock = Members(), Clock()
    await members.attach("n1")
    pending = members.submit("n1", ORDER)
    waiting = asyncio.create_task(members.outcome(pending, 30))
    await let_others_run()
    clock.advance(29)
    await let_others_run()
    assert not waiting.done()
    clock.advance(2)
    assert code(await waiting) is FailureCode.STALLED


async def test_the_stall_clock_starts_when_somebody_waits() -> None:
    members, clock = Members(), Clock()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    clock.advance(100)  # behind others in a chain
    waiting = asyncio.create_task(members.outcome(pending, 30))
    await let_others_run()
    assert not waiting.done()
    members.report(session, Done(KEY, RESULT))
    assert await waiting == RESULT


async def test_progress_puts_a_stall_off() -> None:
    members, clock = Members(), Clock()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    waiting = asyncio.create_task(members.outcome(pending, 30))
    for mark in range(5):
        await let_others_run()
        clock.advance(20)
        members.report(session, Progress((OrderProgress(KEY, mark),)))
    await let_others_run()
    assert not waiting.done()
    clock.advance(31)
    assert code(await waiting) is FailureCode.STALLED


async def test_a_late_result_of_a_stalled_order_changes_nothing() -> None:
    members, clock = Members(), Clock()
    session = await members.attach("n1")
    pending = members.submit("n1", ORDER)
    waiting = asyncio.create_task(members.outcome(pending, 30))
    await let_others_run()
    clock.advance(31)
    await waiting
    members.report(session, Done(KEY, RESULT))
    assert not session.pending


async def test_waiting_for_nodes_ends_when_all_are_there() -> None:
    members = Members()
    waiting = asyncio.create_task(members.wait_for({"n1", "n2"}, 3600))
    await members.attach("n1")
    await let_others_run()
    assert not waiting.done()
    await members.attach("n2")
    assert await waiting == set()


async def test_a_node_that_came_and_left_is_not_waited_for() -> None:
    members = Members()
    waiting = asyncio.create_task(members.wait_for({"n1", "n2"}, 3600))
    await let_others_run()
    session = await members.attach("n1")
    await let_others_run()
    await members.detach(session)
    await let_others_run()
    assert not waiting.done()
    await members.attach("n2")
    assert await asyncio.wait_for(waiting, 30) == set()


async def test_waiting_for_nodes_names_those_that_are_missing_in_the_end() -> None:
    members, clock = Members(), Clock()
    await members.attach("n1")
    waiting = asyncio.create_task(members.wait_for({"n1", "n2"}, 20))
    await let_others_run()
    clock.advance(21)
    assert await waiting == {"n2"}
    assert await members.wait_for({"n1"}, 20) == set()  # the lock is free again


# --- how long is too long depends on what was seen


async def ended(members: Members, session: Session, position: int, silence_s: float, clock: Clock) -> None:
    """An order that ends well after so long a silence."""
    order = Order(OrderKey(1, "train", 0, position), 3, Describe())
    waiting = asyncio.create_task(members.outcome(members.submit("n1", order), 600))
    await let_others_run()
    clock.advance(silence_s)
    members.report(session, Done(order.key, RESULT))
    assert await waiting == RESULT


@pytest.mark.parametrize(
    ("silences", "deadline_s"),
    [((1.0, 4.0, 2.0), 40), ((0.1, 0.1, 0.1), 15), ((90.0, 1.0, 1.0), 600), ((1.0, 1.0), 600)],
)
async def test_the_deadline_follows_the_longest_silence_of_orders_that_ended(
    silences: tuple[float, ...], deadline_s: int
) -> None:
    clock, members = Clock(), Members()
    session = await members.attach("n1")
    for position, silence_s in enumerate(silences):
        await ended(members, session, position, silence_s, clock)
    last = Order(OrderKey(1, "train", 0, 99), 3, Describe())
    waiting = asyncio.create_task(members.outcome(members.submit("n1", last), 600))
    await let_others_run()
    clock.advance(deadline_s - 1)
    await let_others_run()
    assert not waiting.done()
    clock.advance(2)
    failure = await waiting
    assert code(failure) is FailureCode.STALLED
    assert f"no progress for {deadline_s} s" in str(failure)


TRAIN = OrderKey(1, "train", 0, 99)


async def stalled_after(
    members: Members, node: str, client: int, clock: Clock, key: OrderKey = KEY
) -> tuple[int, str]:
    """How many seconds of silence an order is given, and what is said then."""
    waiting = asyncio.create_task(members.outcome(members.submit(node, Order(TRAIN, client, Describe())), 600))
    await let_others_run()
    for seconds in range(1000):
        if waiting.done():
            failure = await waiting
            assert code(failure) is FailureCode.STALLED
            return seconds, str(failure)
        clock.advance(1)
        await let_others_run()
    raise AssertionError("it never stalls")


async def paced() -> tuple[Members, Session, Clock]:
    """Members of whom client 3 of node n1 has ended three orders at once; n2 has ended none."""
    clock, members = Clock(), Members()
    session = await members.attach("n1")
    await members.attach("n2")
    for position in range(3):
        await ended(members, session, position, 0.1, clock)
    return members, session, clock


async def test_a_client_that_nothing_is_known_of_has_the_whole_stall_timeout() -> None:
    members, _, clock = await paced()
    seconds, said = await stalled_after(members, "n1", 4, clock)
    assert (seconds, "raise --stall-timeout" in said) == (600, True)


async def test_a_client_that_stalled_early_has_the_whole_stall_timeout_the_next_time_and_early_ones_after_that() -> (
    None
):
    members, _, clock = await paced()
    given = [await stalled_after(members, "n1", 3, clock) for _ in range(4)]
    assert [seconds for seconds, _ in given] == [15, 600, 15, 15]
    assert ["--stall-timeout" in said for _, said in given] == [False, True, False, False]


async def test_a_slow_client_that_stalled_early_takes_part_from_then_on() -> None:
    members, session, clock = await paced()
    await stalled_after(members, "n1", 3, clock)
    for position in range(4, 7):
        await ended(members, session, position, 20.0, clock)


async def test_a_node_that_hangs_costs_the_whole_stall_timeout_once_whoever_of_its_clients_is_asked() -> None:
    members, _, clock = await paced()
    given = [await stalled_after(members, "n2", client, clock) for client in (5, 6, 7, 5)]
    assert [seconds for seconds, _ in given] == [600, 15, 15, 15]
    seconds, _ = await stalled_after(members, "n1", 8, clock)
    assert seconds == 600  # another node


async def test_a_node_that_attaches_anew_does_not_count_as_hanging() -> None:
    members, _, clock = await paced()
    await stalled_after(members, "n2", 5, clock)
    await members.attach("n2")
    assert (await stalled_after(members, "n2", 6, clock))[0] == 600


async def test_a_node_does_not_count_as_hanging_when_such_an_order_ends_well_there() -> None:
    members, session, clock = await paced()
    await stalled_after(members, "n1", 5, clock)
    await ended(members, session, 7, 0.1, clock)
    assert (await stalled_after(members, "n1", 6, clock))[0] == 600


async def test_orders_that_need_not_wait_for_each_other_stall_at_the_same_time() -> None:
    clock, members = Clock(), Members()
    await members.attach("n1")
    keys = [OrderKey(1, "train", 0, position) for position in range(3)]
    every = [members.submit("n1", Order(key, 3, Describe())) for key in keys]
    clock.advance(31)
    for pending in every:
        assert code(await members.outcome(pending, 30, in_turn=False)) is FailureCode.STALLED
