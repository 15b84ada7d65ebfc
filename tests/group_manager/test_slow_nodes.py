"""Nodes that are far slower than others have time without a setting; nodes that hang do not have it twice."""

from __future__ import annotations

import asyncio

import pytest

from fedgsp.messages import Describe, Described, Done, FailureCode, Order, OrderKey, OrderProgress, Progress
from group_manager.members import Members
from group_manager.pace import SLOWER, Pace
from group_manager.sessions import MOST_WAITS, Session
from tests.support.clock import Clock
from tests.support.scripted import let_others_run

STALL_TIMEOUT_S = 60.0
RESULT = Described((1, 2))


def key(position: int) -> OrderKey:
    return OrderKey(1, "train", 0, position)


async def stalled_after(members: Members, session: Session, clock: Clock, position: int, computes_for: int) -> int:
    """Seconds after which a silent order stalls; its node uses the processor for so many seconds."""
    order = Order(key(position), 5, Describe())
    waiting = asyncio.create_task(members.outcome(members.submit(session.node, order), STALL_TIMEOUT_S))
    await let_others_run()
    for seconds in range(3000):
        if waiting.done():
            failure = await waiting
            assert getattr(failure, "code", None) is FailureCode.STALLED, failure
            return seconds
        if seconds < computes_for:
            members.report(session, Progress((OrderProgress(key(position), 0, 100.0 + seconds),)))
        clock.advance(1)
        await let_others_run()
    raise AssertionError("it never stalls")


async def ended(members: Members, session: Session, clock: Clock, position: int, silence_s: float) -> None:
    """An order that ends well after a silence during which its node used the processor."""
    order = Order(key(position), 5, Describe())
    waiting = asyncio.create_task(members.outcome(members.submit(session.node, order), STALL_TIMEOUT_S))
    await let_others_run()
    for seconds in range(int(silence_s)):
        members.report(session, Progress((OrderProgress(key(position), 0, 100.0 * position + seconds + 1),)))
        clock.advance(1)
        await let_others_run()
    members.report(session, Done(order.key, RESULT))
    assert await waiting == RESULT


async def test_a_batch_may_take_20_stall_timeouts_while_its_node_computes() -> None:
    clock, members = Clock(), Members()
    session = await members.attach("n1")
    await ended(members, session, clock, 1, 19 * STALL_TIMEOUT_S)
    await ended(members, session, clock, 2, 19 * STALL_TIMEOUT_S)


@pytest.mark.parametrize(("computes_for", "stalls_after"), [(0, 60), (30, 60), (200, 210), (3000, 1200)])
async def test_a_node_that_computes_no_more_hangs_after_the_stall_timeout(
    computes_for: int, stalls_after: int
) -> None:
    clock, members = Clock(), Members()
    session = await members.attach("n1")
    assert abs(await stalled_after(members, session, clock, 1, computes_for) - stalls_after) <= 1


async def test_a_long_batch_has_this_time_also_if_other_nodes_took_none() -> None:
    """An order has a deadline beside its stall clock, which follows from what such orders took."""
    clock, members = Clock(), Members()
    session, other = await members.attach("n1"), await members.attach("n2")
    for position in range(3):
        await ended(members, other, clock, position, 0)
    await ended(members, session, clock, 3, 19 * STALL_TIMEOUT_S)
    members = Members()
    session, other = await members.attach("n1"), await members.attach("n2")
    for position in range(3):
        await ended(members, other, clock, position, 0)
    assert 1200 <= await stalled_after(members, session, clock, 3, 3000) <= 1201
    assert await stalled_after(members, session, clock, 4, 3000) <= 16


async def test_an_endless_batch_costs_so_much_time_once() -> None:
    clock, members = Clock(), Members()
    session, other = await members.attach("n1"), await members.attach("n2")
    for position in range(3):
        await ended(members, other, clock, position, 30)
    assert 1200 <= await stalled_after(members, session, clock, 3, 3000) <= 1201
    assert await stalled_after(members, session, clock, 4, 3000) <= 10 * 30 + 1


def test_a_silent_site_may_be_far_slower_than_is_typical_of_others() -> None:
    pace = Pace()
    assert pace.most_s(("train", "n1", 1), STALL_TIMEOUT_S, computes=False) == STALL_TIMEOUT_S
    for node, silence_s in (("n1", 900.0), ("n2", 10.0), ("n3", 8.0), ("n4", 12.0)):
        pace.note(("train", node, 1), silence_s)
    assert pace.most_s(("train", "n1", 1), STALL_TIMEOUT_S, computes=False) == 10.0 * SLOWER
    assert pace.most_s(("evaluate", "n1", 1), STALL_TIMEOUT_S, computes=False) == STALL_TIMEOUT_S
    # One slow node does not choose what is typical.
    assert pace.most_s(("train", "n2", 1), STALL_TIMEOUT_S, computes=False) == 12.0 * SLOWER


async def test_the_clocks_of_an_order_stand_still_while_its_start_comes_but_not_for_ever() -> None:
    members, clock = Members(), Clock()
    await members.attach("n1")
    pending = members.submit("n1", Order(key(1), 5, Describe()))
    coming: list[asyncio.Future[None]] = []
    pending.start_coming = lambda: coming[-1] if coming else None
    waiting = asyncio.create_task(members.outcome(pending, STALL_TIMEOUT_S))
    for _ in range(MOST_WAITS):
        await let_others_run()
        clock.advance(STALL_TIMEOUT_S - 1)  # the fetch begins when the node has waited for long
        began = members.time()
        coming.append(asyncio.get_running_loop().create_future())
        clock.advance(3600)
        await let_others_run()
        assert not waiting.done()
        pending.start_was_fetched(began, members.time())
        coming.pop().set_result(None)
    await let_others_run()
    clock.advance(STALL_TIMEOUT_S - 1)
    await let_others_run()
    assert not waiting.done()
    coming.append(asyncio.get_running_loop().create_future())
    clock.advance(2)
    assert getattr(await waiting, "code", None) is FailureCode.STALLED
