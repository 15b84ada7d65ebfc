"""Waits with a limit."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`; raises TimeoutError after so many seconds.

    Use it in place of `asyncio.wait_for`, which in Python 3.11 forgets a cancellation that comes when `work` has just
    ended: a task that should end would go on.
    """
    async with asyncio.timeout(seconds):
        return await work
