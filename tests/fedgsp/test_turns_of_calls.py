"""Few calls at once for one thing, also if a call that was ended takes its time to end."""

from __future__ import annotations

import asyncio

from fedgsp.limits.turns import Turns
from tests.support.scripted import let_others_run


async def test_the_end_of_an_older_call_does_not_hide_newer_ones() -> None:
    turns, open_now = Turns(1), set[str]()
    leave = {name: asyncio.Event() for name in "abcd"}

    async def call(name: str, slow_to_end: asyncio.Event | None = None) -> None:
        with turns.of("k"):
            open_now.add(name)
            try:
                await leave[name].wait()
            except asyncio.CancelledError:
                if slow_to_end is not None:
                    await slow_to_end.wait()
                raise
            finally:
                open_now.discard(name)

    ending = asyncio.Event()
    calls = [asyncio.create_task(call("a", ending))]
    await let_others_run()
    calls.append(asyncio.create_task(call("b")))  # ends the first, which takes its time
    await let_others_run()
    leave["b"].set()
    await let_others_run()
    calls.append(asyncio.create_task(call("c")))
    await let_others_run()
    ending.set()
    await let_others_run()
    calls.append(asyncio.create_task(call("d")))
    await let_others_run()
    assert open_now == {"d"}
    leave["d"].set()
    await asyncio.gather(*calls, return_exceptions=True)
