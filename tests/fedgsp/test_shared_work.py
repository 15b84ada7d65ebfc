from __future__ import annotations

import asyncio

import pytest

from fedgsp.shared_work import Share, SharedWork
from tests.support.scripted import let_others_run


class Work:
    """Ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.called_off = False
        self.ends: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> str:
        self.begun += 1
        try:
            return await self.ends
        except asyncio.CancelledError:
            self.called_off = True
            raise


async def test_work_is_done_once_for_all_who_wait() -> None:
    shared: SharedWork[str] = SharedWork()
    work, other = Work(), Work()
    waiting = [asyncio.create_task(shared.share("a", work)) for _ in range(3)]
    alone = asyncio.create_task(shared.share("b", other))
    await let_others_run()
    work.ends.set_result("done")
    other.ends.set_result("also")
    assert await asyncio.gather(*waiting) == [Share("done", first, 3) for first in (True, False, False)]
    assert await alone == Share("also", True, 1)
    assert (work.begun, other.begun) == (1, 1)


async def test_work_goes_on_until_the_last_one_stops_to_wait() -> None:
    shared: SharedWork[str] = SharedWork()
    work, again = Work(), Work()
    first, second = (asyncio.create_task(shared.share("a", work)) for _ in range(2))
    await let_others_run()
    first.cancel()
    await let_others_run()
    assert not work.called_off
    second.cancel()
    third = asyncio.create_task(shared.share("a", again))
    await let_others_run()
    assert work.called_off
    assert (work.begun, again.begun) == (1, 1), "it joined what was called off"
    again.ends.set_result("done")
    assert await third == Share("done", True, 1)


async def test_all_who_wait_learn_why_the_work_failed() -> None:
    shared: SharedWork[str] = SharedWork()
    work = Work()
    waiting = [asyncio.create_task(shared.share("a", work)) for _ in range(2)]
    await let_others_run()
    work.ends.set_exception(ValueError("no"))
    for failed in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(failed, ValueError)
    after = Work()
    after.ends.set_result("done")
    assert (await shared.share("a", after)).result == "done"


async def test_a_result_is_not_kept() -> None:
    shared: SharedWork[str] = SharedWork()
    for _ in range(2):
        work = Work()
        work.ends.set_result("done")
        await shared.share("a", work)
        assert work.begun == 1
    with pytest.raises(ZeroDivisionError):
        await shared.share("a", failing)


async def failing() -> str:
    raise ZeroDivisionError
