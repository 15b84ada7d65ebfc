"""Whoever is cancelled waits for the end of what must not be cut off, and a failure that comes then is no alarm."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any

import pytest

from fedgsp.limits import conversions
from fedgsp.to_the_end import to_the_end
from tests.support.scripted import let_others_run


async def test_the_result_comes_back() -> None:
    assert await to_the_end(asyncio.sleep(0, "here")) == "here"


async def test_a_failure_is_raised() -> None:
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failing.set_exception(ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        await to_the_end(failing)


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_a_cancellation_waits_for_the_end(cancellations: int) -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(to_the_end(work))
    await asyncio.sleep(0)
    for _ in range(cancellations):
        task.cancel()
        await let_others_run()
    assert not task.done()
    work.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_failure_after_a_cancellation_is_not_logged_by_asyncio(cancellations: int) -> None:
    fails = asyncio.Event()

    async def work() -> None:
        await fails.wait()
        raise ValueError("bad")

    assert await _logged(to_the_end(work()), fails, cancellations) == []


async def test_the_log_of_asyncio_is_seen_here() -> None:
    """The test above could not fail otherwise."""
    fails = asyncio.Event()

    async def work() -> None:
        await fails.wait()
        raise ValueError("bad")

    async def without() -> None:
        await asyncio.shield(asyncio.create_task(work()))

    assert await _logged(without(), fails, 1) == ["Task exception was never retrieved"]


async def _logged(waiting: Awaitable[None], fails: asyncio.Event, cancellations: int) -> list[str]:
    """What asyncio logs if `waiting` is cancelled so often before its work fails."""
    told: list[str] = []

    def note(_: object, context: dict[str, Any]) -> None:
        told.append(context["message"])

    asyncio.get_running_loop().set_exception_handler(note)
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    fails.set()
    await asyncio.wait([task])
    del task, waiting
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    return told


async def test_a_large_message_that_cannot_be_read_is_no_alarm_when_its_caller_has_gone() -> None:
    fails = asyncio.Event()
    loop = asyncio.get_running_loop()

    def convert() -> None:
        asyncio.run_coroutine_threadsafe(fails.wait(), loop).result(10)
        raise ValueError("bad")

    assert await _logged(conversions.by_size("peer", conversions.LARGE_BYTES + 1, convert), fails, 1) == []
