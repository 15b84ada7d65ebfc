from __future__ import annotations

import asyncio

import pytest

from tests.support.scripted import let_others_run
from top_server.managers.at_once import AtOnce


async def test_as_many_enter_as_may_at_the_time() -> None:
    most, inside = 2, 0
    starting = AtOnce(lambda: most)
    go_on = asyncio.Semaphore(0)

    async def start() -> None:
        nonlocal inside
        async with starting:
            inside += 1
            await go_on.acquire()
        inside -= 1

    tasks = [asyncio.create_task(start()) for _ in range(7)]
    await let_others_run()
    assert inside == 2
    go_on.release()
    await let_others_run()
    assert inside == 2
    most = 4
    go_on.release()
    await let_others_run()
    assert inside == 4
    tasks[-1].cancel()  # it has not begun
    for _ in range(4):
        go_on.release()
    await asyncio.wait(tasks)
    assert inside == 0
    assert [task.cancelled() for task in tasks] == [False] * 6 + [True]


async def test_a_start_that_fails_makes_room() -> None:
    starting = AtOnce(lambda: 1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with starting:
                raise ZeroDivisionError
