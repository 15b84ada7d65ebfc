"""Nodes whose connection ends: they may come back, and their orders with them."""

from __future__ import annotations

import asyncio

import pytest

from fedgsp.messages import Cancel, Describe, Described, Done, Failure, FailureCode, Order, OrderKey, Release
from group_manager.members import Members
from group_manager.sessions import FREE_ABSENCES, PendingOrder, Session
from tests.support.clock import Clock
from tests.support.scripted import let_others_run

RETURN_S, STALL_S = 2.0, 30.0
KEY = OrderKey(1, "train", 0, 0)
ORDER = Order(KEY, 3, Describe())
RESULT = Described((1, 2))


def sent(session: Session) -> list[Order | None]:
    """What waits in the outbox of a session."""
    found = []
    while not session.outbox.empty():
        found.append(session.outbox.get_nowait())
    return found


def code(outcome: object) -> FailureCode:
    assert isinstance(outcome, Failure), outcome
    return outcome.code


def key(position: int) -> OrderKey:
    return OrderKey(1, "train", 0, position)


async def away(members: Members, *patient: bool) -> tuple[Session, list[PendingOrder]]:
    """A node that has got orders, and whose connection has ended."""
    session = await members.attach("n1", process="p")
    orders = [Order(key(position), 3, Describe()) for position in range(len(patient))]
    pending = [members.submit("n1", order, patient=one) for order, one in zip(orders, patient, strict=True)]
    await members.detach(session, session.outbox)
    return session, pending


async def after_an_absence(members: Members, session: Session) -> list[Order | None]:
    """What a node is sent when it comes back; what waited for it before is gone."""
    sent(session)
    await members.detach(session, session.outbox)
    assert await members.attach("n1", process="p") is session
    return sent(session)


async def test_a_node_that_comes_back_gets_its_orders_again_and_its_result_counts() -> None:
    members = Members(RETURN_S)
    session, (pending,) = await away(members, False)
    assert not pending.outcome.done()
    assert await members.attach("n1", process="p") is session
    assert sent(session) == [ORDER]
    assert members.stayed(pending)
    members.report(session, Done(KEY, RESULT))
    assert await members.outcome(pending, STALL_S) == RESULT


async def test_an_order_that_was_called_off_is_called_off_again_and_not_carried_out_late() -> None:
    members = Members(RETURN_S)
    session = await members.attach("n1", process="p")
    pending = members.submit("n1", ORDER)
    members.cancel(pending)
    again = await after_an_absence(members, session)
    assert Order(KEY, 0, Cancel()) in again
    assert ORDER not in again
    assert code(await members.outcome(pending, STALL_S)) is FailureCode.CANCELLED
    await members.detach(session, session.outbox)
    await members.attach("n1", process="p")
    assert sent(session) == [Order(KEY, 0, Cancel())]  # as what has no outcome; not once more for the order


async def test_an_order_that_nobody_waits_for_is_forgotten_and_called_off_again_after_an_absence() -> None:
    members = Members(RETURN_S)
    session = await members.attach("n1", process="p")
    pending = members.submit("n1", ORDER)
    members.cancel(pending)
    members.drop(pending)
    assert not session.pending
    assert code(pending.outcome.result()) is FailureCode.CANCELLED
    members.report(session, Done(KEY, RESULT))  # late
    again = await after_an_absence(members, session)
    assert Order(KEY, 0, Cancel()) in again
    assert ORDER not in again


async def test_an_order_that_was_reported_is_not_sent_again() -> None:
    members = Members(RETURN_S)
    session = await members.attach("n1", process="p")
    members.submit("n1", ORDER)
    members.report(session, Done(KEY, RESULT))
    await members.detach(session, session.outbox)
    await members.attach("n1", process="p")
    assert sent(session) == []


async def test_a_node_that_does_not_come_back_in_time_is_gone() -> None:
    members, clock = Members(RETURN_S), Clock()
    _, (pending,) = await away(members, False)
    assert members.attached("n1")
    waiting = asyncio.create_task(members.outcome(pending, STALL_S))
    await let_others_run()
    clock.advance(RETURN_S + 0.1)
    assert code(await waiting) is FailureCode.NODE_LOST
    assert not members.attached("n1")
    assert not members.stayed(pending)
    assert code(members.submit("n1", ORDER).outcome.result()) is FailureCode.NODE_LOST


async def test_a_node_that_comes_and_goes_all_the_time_cannot_hold_up_an_order() -> None:
    members, clock = Members(RETURN_S), Clock()
    session, (pending,) = await away(members, False)
    waiting, seconds = asyncio.create_task(members.outcome(pending, STALL_S)), 0.0
    while not waiting.done():
        await let_others_run()
        clock.advance(1.0)  # in time to come back
        await members.attach("n1", process="p")
        await let_others_run()
        clock.advance(0.01)
        seconds += 1.01
        assert seconds < 2 * STALL_S
        await members.detach(session, session.outbox)
        await let_others_run()
    assert code(waiting.result()) is FailureCode.STALLED


async def test_absences_do_not_count_for_a_node_that_is_there_most_of_the_time() -> None:
    members, clock = Members(RETURN_S), Clock()
    session, (pending,) = await away(members, False)
    waiting = asyncio.create_task(members.outcome(pending, STALL_S))
    for _ in range(2 * FREE_ABSENCES):  # 16 s there, 16 s away
        await let_others_run()
        clock.advance(1.0)
        await members.attach("n1", process="p")
        await let_others_run()
        clock.advance(1.0)
        await members.detach(session, session.outbox)
    await members.attach("n1", process="p")
    await let_others_run()
    clock.advance(STALL_S - 2 * FREE_ABSENCES - 0.5)
    await let_others_run()
    assert not waiting.done()
    clock.advance(1.0)
    assert code(await waiting) is FailureCode.STALLED


async def test_the_clock_of_an_order_that_was_awaited_during_an_absence_begins_with_the_return() -> None:
    members, clock = Members(RETURN_S), Clock()
    session, (pending,) = await away(members, True)
    clock.advance(1.0)
    waiting = asyncio.create_task(members.outcome(pending, STALL_S))
    await let_others_run()
    clock.advance(0.5)
    await members.attach("n1", process="p")
    assert pending.begun == pending.touched == pytest.approx(members.time())
    members.report(session, Done(key(0), RESULT))
    assert await waiting == RESULT


async def test_another_process_of_the_node_does_not_get_the_orders_of_the_first_one() -> None:
    members = Members(RETURN_S)
    session, (pending,) = await away(members, True)
    assert await members.attach("n1", process="another") is not session
    assert code(pending.outcome.result()) is FailureCode.NODE_LOST


async def test_a_process_with_another_certificate_does_not_get_the_orders_either() -> None:
    members = Members(RETURN_S)
    session, (pending,) = await away(members, True)
    assert await members.attach("n1", b"another", "p") is not session
    assert code(pending.outcome.result()) is FailureCode.NODE_LOST


async def test_a_second_connection_of_a_process_takes_the_place_of_the_first_one() -> None:
    members = Members(RETURN_S)
    session = await members.attach("n1", process="p")
    first = session.outbox
    pending = members.submit("n1", ORDER)
    await members.attach("n1", process="p")
    assert [first.get_nowait(), first.get_nowait()] == [ORDER, None]
    assert sent(session) == [ORDER]
    await members.detach(session, first)  # its stream notices late
    assert members.attached("n1")
    assert not pending.outcome.done()


async def test_what_a_node_may_not_have_heard_is_told_again() -> None:
    members, clock = Members(RETURN_S), Clock()
    session = await members.attach("n1", process="p")
    old, new = Order(key(7), 0, Release(("old",))), Order(key(8), 0, Release(("new",)))
    members.tell("n1", old)
    clock.advance(100)
    members.tell("n1", new)
    await members.detach(session, session.outbox)
    late = Order(key(9), 0, Release(("late",)))
    members.tell("n1", late)
    await members.attach("n1", process="p")
    assert sent(session) == [new, late]


async def test_a_patient_order_waits_until_its_turn_however_late_its_node_comes_back() -> None:
    members, clock = Members(RETURN_S), Clock()
    session, (impatient, patient) = await away(members, False, True)
    await let_others_run()
    clock.advance(10 * RETURN_S)
    assert code(await members.outcome(impatient, STALL_S)) is FailureCode.NODE_LOST
    assert not patient.outcome.done()
    await members.attach("n1", process="p")
    assert sent(session) == [Order(key(0), 0, Cancel()), Order(key(1), 3, Describe())]
    members.report(session, Done(key(1), RESULT))
    assert await members.outcome(patient, STALL_S) == RESULT


async def test_a_patient_order_whose_turn_it_is_fails_when_its_node_is_gone() -> None:
    members, clock = Members(RETURN_S), Clock()
    _, (pending,) = await away(members, True)
    waiting = asyncio.create_task(members.outcome(pending, STALL_S))
    await let_others_run()
    clock.advance(RETURN_S + 0.1)
    assert code(await waiting) is FailureCode.NODE_LOST


async def test_a_node_that_leaves_while_somebody_waits_for_its_order_is_gone_as_soon() -> None:
    members, clock = Members(RETURN_S), Clock()
    session = await members.attach("n1", process="p")
    waiting = asyncio.create_task(members.outcome(members.submit("n1", ORDER, patient=True), STALL_S))
    await let_others_run()
    await members.detach(session, session.outbox)
    await let_others_run()
    clock.advance(RETURN_S + 0.1)
    async with asyncio.timeout(STALL_S / 2):
        assert code(await waiting) is FailureCode.NODE_LOST


async def test_a_patient_order_waits_while_others_work_and_no_longer() -> None:
    members, clock = Members(RETURN_S), Clock()
    _, (pending,) = await away(members, True)
    await members.attach("n2", process="q")
    other = members.submit("n2", Order(key(9), 4, Describe()))
    waiting = asyncio.create_task(members.outcome(pending, STALL_S, in_turn=False, beside=lambda: [other]))
    await let_others_run()
    clock.advance(RETURN_S + 5)
    await let_others_run()
    assert not waiting.done()
    clock.advance(STALL_S)  # the other order has stalled by now
    assert code(await waiting) is FailureCode.NODE_LOST


async def test_the_orders_of_a_node_that_was_away_do_not_stall_by_that() -> None:
    members, clock = Members(RETURN_S), Clock()
    session, (pending,) = await away(members, True)
    clock.advance(10 * STALL_S)
    await members.attach("n1", process="p")
    waiting = asyncio.create_task(members.outcome(pending, STALL_S, in_turn=False))
    await let_others_run()
    assert not waiting.done()
    members.report(session, Done(key(0), RESULT))
    assert await waiting == RESULT


async def test_a_node_that_comes_and_goes_does_not_put_a_stall_off() -> None:
    members, clock = Members(RETURN_S), Clock()
    session = await members.attach("n1", process="p")
    waiting = asyncio.create_task(members.outcome(members.submit("n1", ORDER, patient=True), STALL_S))
    await let_others_run()
    for _ in range(3):
        clock.advance(STALL_S / 3 + 0.1)
        await members.detach(session, session.outbox)
        clock.advance(RETURN_S / 2)
        await members.attach("n1", process="p")
        await let_others_run()
    assert code(await waiting) is FailureCode.STALLED


async def test_an_order_of_a_node_that_is_away_is_called_off_at_once() -> None:
    members = Members(RETURN_S)
    session, (pending,) = await away(members, True)
    members.cancel(pending)
    assert code(pending.outcome.result()) is FailureCode.NODE_LOST
    await members.attach("n1", process="p")
    assert sent(session) == [Order(key(0), 0, Cancel())]


async def test_a_manager_that_was_frozen_does_not_take_its_own_pause_for_the_silence_of_nodes() -> None:
    time = 0.0
    members, clock = Members(RETURN_S, lambda: time), Clock()
    session, (pending,) = await away(members, True)
    other = await members.attach("n2", process="q")
    silent = members.submit("n2", Order(key(9), 4, Describe()))
    waiting = [asyncio.create_task(members.outcome(one, STALL_S)) for one in (pending, silent)]
    missing = asyncio.create_task(members.wait_for({"n3"}, 5))
    await let_others_run()
    clock.advance(3600)  # all timers are due, but the clock of the process stood still
    for _ in range(3):
        await let_others_run()
    assert not any(task.done() for task in (*waiting, missing))
    await members.attach("n1", process="p")
    await members.attach("n3")
    members.report(session, Done(key(0), RESULT))
    members.report(other, Done(key(9), RESULT))
    assert await asyncio.gather(*waiting) == [RESULT, RESULT]
    assert await missing == set()
