"""A node that leaves its managers: it waits for the end of all their orders, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fedgsp.connections.channels import Channels
from fedgsp.messages import AttachTo
from fedgsp.security.tickets import Door
from fedgsp_node.connections.attachment import OrderLog
from fedgsp_node.connections.managers import Managers, _Served
from fedgsp_node.receipts import Receipts
from tests.support.clock import Clock
from tests.support.scripted import let_others_run
from tests.support.working import node

ADDRESS = "127.0.0.1:1"


@asynccontextmanager
async def serving(ends: asyncio.Event) -> AsyncIterator[tuple[Managers, asyncio.Task[None]]]:
    """A node that serves a manager whose orders go on until the event."""

    async def life() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ends.wait()

    async with node() as n, Channels() as channels:
        of_node = ("n0", "process", "127.0.0.1", True)
        managers = Managers(
            *of_node, channels, n.worker, Door(), OrderLog(), lambda _: Receipts(), joined=asyncio.Event()
        )
        task = asyncio.create_task(life())
        await let_others_run()
        managers._served["m0"] = _Served(task, ADDRESS, AttachTo("m0", ADDRESS, b""))
        try:
            yield managers, task
        finally:
            task.cancel()
            ends.set()
            await asyncio.wait([task])


async def test_orders_of_a_manager_that_was_replaced_are_waited_for() -> None:
    ends = asyncio.Event()
    async with serving(ends) as (managers, task):
        managers._replace(ADDRESS)
        leaving = asyncio.create_task(managers.detach())
        await let_others_run()
        assert not leaving.done()
        ends.set()
        await leaving
        assert task.done()


async def test_orders_are_waited_for_after_a_wait_that_was_cut_off() -> None:
    """A node that is stopped while it changes to another run."""
    ends = asyncio.Event()
    async with serving(ends) as (managers, task):
        first = asyncio.create_task(managers.detach())
        await let_others_run()
        first.cancel()
        leaving = asyncio.create_task(managers.detach())
        await let_others_run()
        assert first.cancelled()
        assert not leaving.done()
        ends.set()
        await leaving
        assert task.done()


async def test_an_order_that_does_not_end_is_left_after_some_seconds() -> None:
    clock = Clock()
    async with serving(asyncio.Event()) as (managers, task):
        leaving = asyncio.create_task(managers.detach(5.0))
        await let_others_run()
        assert not leaving.done()
        clock.advance(5.0)
        await leaving
        assert not task.done()
