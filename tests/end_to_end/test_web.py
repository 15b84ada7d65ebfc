"""A run with its web page: real processes, and a browser's requests."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import psutil
import pytest

from tests.support.processes import DEADLINE_S, Process, assert_gone, top_server
from tests.support.web import messages

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
QUICK = ["--task-option", "clients=4", "--local-nodes", "1", "--clients", "4"]


def address(run: Process) -> str:
    found = re.search(r"the web page of this run: (http://127\.0\.0\.1:\d+/\S+)", run.errors)
    assert found is not None, run.errors
    return found[1]


async def streamed(browser: httpx.AsyncClient, base: str) -> AsyncIterator[dict[str, Any]]:
    async with browser.stream("GET", f"{base}events?run=run&from=0", timeout=DEADLINE_S) as answer:
        text = ""
        async for part in answer.aiter_text():
            *blocks, text = (text + part).split("\n\n")
            for one in messages("\n\n".join([*blocks, ""])):
                for event in one["data"]["events"] if "id" in one else ():
                    yield event


async def test_a_browser_sees_every_event_of_a_run_up_to_its_end(tmp_path: Path) -> None:
    async with (
        top_server(tmp_path, *QUICK, "--rounds", "2", "--web", "127.0.0.1:0") as run,
        httpx.AsyncClient() as web,
    ):
        await run.event("listening")
        base = address(run)
        whole = (await web.get(f"{base}run.json?run=run")).json()
        assert (whole["lives"], whole["ending"]["kind"]) == (True, "open")
        seen = [event async for event in streamed(web, base)]
        assert await run.ended() == 0, run.errors
    assert seen == run.events
    assert seen[-1]["event"] == "run_finished"
    assert run.errors.count("\n") == 1  # its address; it has nothing else to say


async def test_a_page_that_cannot_be_served_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        async with top_server(tmp_path, *QUICK, "--web", where) as run:
            assert await run.ended() == 2
    assert f"the web page cannot listen at {where}: Address already in use" in run.errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
async def test_a_page_that_dies_does_not_disturb_its_run(tmp_path: Path) -> None:
    async with top_server(tmp_path, *QUICK, "--rounds", "3", "--web", "127.0.0.1:0") as run:
        await run.event("listening")
        page(run).send_signal(SIGKILL)
        assert await run.ended() == 0, run.errors
    assert "the web page ended before the run, with exit code -9" in run.errors


@pytest.mark.slow
async def test_a_page_ends_with_a_top_server_that_is_killed(tmp_path: Path) -> None:
    async with top_server(tmp_path, *QUICK, "--rounds", "50", "--web", "127.0.0.1:0") as run:
        await run.event("round_finished", round=1)
        family = run.family()
        run.send(SIGKILL)
        await run.ended()
        await assert_gone(family)


def page(run: Process) -> psutil.Process:
    [found] = [one for one in run.family() if "top_server web" in " ".join(one.cmdline())]
    return found
