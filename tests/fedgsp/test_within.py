"""A wait with a limit does not forget that it was cancelled."""

from __future__ import annotations

import asyncio

import pytest

from fedgsp.within import within


async def test_what_comes_in_time_is_the_result() -> None:
    assert await within(10, asyncio.sleep(0, "here")) == "here"


async def test_what_takes_too_long_is_cancelled() -> None:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(TimeoutError):
        await within(0.01, waiting)
    assert waiting.cancelled()


async def test_a_cancellation_at_the_moment_of_the_result_is_not_forgotten() -> None:
    """`asyncio.wait_for` of Python 3.11 returns the result here."""
    came = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(within(10, came))
    await asyncio.sleep(0)
    came.set_result("here")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
