"""The manager measures the turn of every member of a relay: the time from one result to the next."""

from __future__ import annotations

import asyncio

from fedgsp.messages import GroupResult, MemberDone
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, scene
from tests.support.scripted import STALL_TIMEOUT_S

TWO_NODES = hosted(n1=[0, 2], n2=[1, 3])


def turns(play: Scene) -> dict[int, float]:
    return {event.kind.client: event.kind.turn_s for event in play.events if isinstance(event.kind, MemberDone)}


async def test_turns_of_a_relay_follow_each_other_and_a_slow_one_is_longer() -> None:
    async with scene(Faults().crawl(2)) as play:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert isinstance(await play.run(TWO_NODES), GroupResult)
        found = turns(play)
        assert list(found) == [0, 1, 2, 3]
        assert min(found.values()) >= 0
        assert found[2] > STALL_TIMEOUT_S
        assert sum(found.values()) <= loop.time() - begin


async def test_the_time_until_a_stall_is_noticed_counts_for_no_other_member() -> None:
    async with scene(Faults().stall(1)) as play:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert isinstance(await play.run(TWO_NODES), GroupResult)
        found = turns(play)
        assert set(found) == {0, 2, 3}
        assert sum(found.values()) <= loop.time() - begin - STALL_TIMEOUT_S


async def test_members_that_train_at_once_have_no_turns() -> None:
    async with scene() as play:
        assert isinstance(await play.run(TWO_NODES, "parallel", aggregation="mean"), GroupResult)
        assert set(turns(play).values()) == {0.0}
