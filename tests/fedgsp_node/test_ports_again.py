"""A new manager may get the port of a dead one: what the node does about the dead one does not cut the new one off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fedgsp.messages import AttachTo
from fedgsp.settings.managers import ManagerSettings
from group_manager import server as manager_server
from group_manager.server import serving
from tests.fedgsp_node.connections.test_coming_back import LOST_AFTER_S, Watched, node
from tests.support.callers import ISSUER, attach_ticket


@asynccontextmanager
async def manager(name: str, address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Watched]]:
    made: list[Watched] = []

    def members(*arguments: Any) -> Watched:
        made.append(Watched(*arguments))
        return made[0]

    monkeypatch.setattr(manager_server, "Members", members)
    settings = ManagerSettings(name=name, run="run", lost_after=LOST_AFTER_S, listen=address)
    async with serving(settings, ISSUER) as at:
        yield at, made[0]


async def test_a_manager_at_the_port_of_a_dead_one_keeps_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with manager("m0", "127.0.0.1:0", monkeypatch) as (address, first):
        there = node("n0", address)
        served = await there.__aenter__()
        assert await first.wait_for({"n0"}, 10) == set()
        old = served._served["m0"].task
    try:
        async with manager("m1", address, monkeypatch) as (_, second):
            served.attach("run", AttachTo("m1", address, attach_ticket("n0", "m1")))
            assert await second.wait_for({"n0"}, 10) == set()
            await asyncio.gather(old, return_exceptions=True)
            assert list(served._served) == ["m1"]
            assert not second.away.is_set()
            assert second._sessions["n0"].away_since is None
    finally:
        await there.__aexit__(None, None, None)


async def test_a_channel_that_another_closes_ends_no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC cancels the calls of such a channel, and a cancelled task would not dial again."""
    async with (
        manager("m0", "127.0.0.1:0", monkeypatch) as (address, members),
        node("n0", address) as served,
    ):
        assert await members.wait_for({"n0"}, 10) == set()
        await served._channels.drop(address)
        await members.away.wait()
        assert await members.wait_for({"n0"}, 10) == set()
        assert list(served._served) == ["m0"]
