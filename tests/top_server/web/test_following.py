"""Streams of events: nothing is lost, and nobody waits for a browser."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.recordings import long_run
from tests.support.web import messages
from top_server.record.directory import RunDirectory
from top_server.record.machine import is_recorded, note_machine
from top_server.web.following import ANEW, Followed

SHORT = {"rounds": 3, "clients": 20, "nodes": 2}


def run(tmp_path: Path, **more: Any) -> Path:
    return long_run(tmp_path / "a", **{**SHORT, **more}) / "events.jsonl"


def add(events: Path, *found: dict[str, Any]) -> None:
    with events.open("a") as file:
        file.writelines(json.dumps({"time": "2026-01-01T00:00:00.000Z", **one}) + "\n" for one in found)


async def of_kind(stream: AsyncIterator[bytes], kind: str = "message") -> dict[str, Any]:
    """The next message of this kind."""
    async with asyncio.timeout(20):
        async for block in stream:
            for found in messages(block.decode()):
                if found.get("event", "message") == kind:
                    return found
    raise AssertionError(f"the stream has ended without {kind}")


async def test_a_browser_that_comes_back_gets_every_event_once(tmp_path: Path) -> None:
    events = run(tmp_path)
    every = events.read_bytes().splitlines()
    followed, closing, seen = Followed(RunDirectory(events.parent)), asyncio.Event(), []
    at = 0
    while at < events.stat().st_size:
        stream = followed.stream(at, closing)
        message = await of_kind(stream)  # and then its connection breaks
        await stream.aclose()  # type: ignore[attr-defined]
        seen += message["data"]["events"]
        at = int(message["id"])
        assert message["data"]["end"] == at
    assert seen == [json.loads(line) for line in every]


async def test_what_is_recorded_later_comes_to_all_browsers_and_slow_ones_hold_up_nobody(tmp_path: Path) -> None:
    events = run(tmp_path)
    followed, closing = Followed(RunDirectory(events.parent)), asyncio.Event()
    end = events.stat().st_size
    slow, quick = followed.stream(end, closing), [followed.stream(end, closing) for _ in range(20)]
    waiting = [asyncio.create_task(of_kind(stream)) for stream in quick]
    await asyncio.sleep(0)
    add(events, {"event": "round_waits", "round": 4, "clients": 1, "needed": 2, "timeout": 5.0})
    for message in await asyncio.gather(*waiting):
        assert message["data"]["told"][0]["text"].startswith("round 4 waits")
    add(events, {"event": "node_left", "node": "n", "reason": "lost"})
    late: list[str] = []
    while len(late) < 2:
        late += [event["event"] for event in (await of_kind(slow))["data"]["events"]]
    assert late == ["round_waits", "node_left"]


async def test_half_a_line_is_no_event_yet(tmp_path: Path) -> None:
    events = run(tmp_path)
    followed, closing = Followed(RunDirectory(events.parent)), asyncio.Event()
    end = events.stat().st_size
    with events.open("ab") as file:
        file.write(b'{"event": "node_left", ')
    assert followed._message(end) == (end, b"")
    with events.open("ab") as file:
        file.write(b'"time": "", "node": "n", "reason": "gone"}\n')
    assert (await of_kind(followed.stream(end, closing)))["data"]["events"][0]["node"] == "n"


@pytest.mark.parametrize("offset", [5, 10**9])
async def test_a_place_that_is_gone_makes_the_browser_read_anew(tmp_path: Path, offset: int) -> None:
    followed = Followed(RunDirectory(run(tmp_path).parent))
    found = [block async for block in followed.stream(offset, asyncio.Event())]
    assert found[-1] == ANEW


async def test_a_browser_that_is_far_behind_reads_the_whole_in_place_of_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("top_server.web.following.MOST_BEHIND", 1000)
    followed = Followed(RunDirectory(run(tmp_path).parent))
    assert [block async for block in followed.stream(0, asyncio.Event())][-1] == ANEW


async def test_a_stream_ends_with_its_server_after_the_last_event(tmp_path: Path) -> None:
    events = run(tmp_path)
    followed, closing = Followed(RunDirectory(events.parent)), asyncio.Event()
    end = events.stat().st_size
    add(events, {"event": "run_stopped", "code": 143})
    closing.set()
    blocks = b"".join([block async for block in followed.stream(end, closing)]).decode()
    assert [event["event"] for one in messages(blocks) for event in one["data"].get("events", [])] == ["run_stopped"]


async def test_browsers_hear_that_a_top_server_was_killed(tmp_path: Path) -> None:
    events = run(tmp_path, finished=False)
    followed = Followed(RunDirectory(events.parent))
    stream = followed.stream(events.stat().st_size, asyncio.Event())
    with events.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert (await of_kind(stream, "state"))["data"]["lives"] is True
        assert json.loads(await followed.whole())["ending"]["title"] == "The run is playing."
    assert (await of_kind(stream, "state"))["data"]["lives"] is False
    whole = json.loads(await followed.whole())
    assert whole["ending"]["title"] == "The top server ended without a word, after 3 rounds."
    assert "continue with top-server --resume" in whole["ending"]["remedy"]


@pytest.mark.parametrize(("noted", "lives"), [("here", False), ("other 4026531836\n", None), ("nowhere\n", None)])
async def test_nobody_knows_of_a_run_on_another_machine_or_in_another_container_whether_it_is_played(
    tmp_path: Path, noted: str, lives: bool | None
) -> None:
    directory = RunDirectory(run(tmp_path, finished=False).parent)
    with directory.events.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        note_machine(directory)
        assert is_recorded(directory) is True
    if noted != "here":
        (directory.logs / "machine").write_text(noted)
    assert is_recorded(directory) is lives
    known = "The top server ended without a word" if lives is False else "The run has no end yet: it is playing, or"
    assert json.loads(await Followed(directory).whole())["ending"]["title"].startswith(known)


def test_a_lock_that_cannot_be_seen_where_it_is_held_is_unknown_everywhere(tmp_path: Path) -> None:
    """As on a file system without locks, or one whose numbers in /proc/locks are others."""
    directory = RunDirectory(run(tmp_path, finished=False).parent)
    note_machine(directory)  # by a process without the lock
    assert is_recorded(directory) is None


def test_a_machine_on_which_no_lock_can_be_seen_notes_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(run(tmp_path, finished=False).parent)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("top_server.record.machine._LOCKS", tmp_path / "missing")
        note_machine(directory)
    assert is_recorded(directory) is None  # on a machine that could see the locks of its own processes


async def test_nodes_of_a_top_server_that_was_killed_are_not_there(tmp_path: Path) -> None:
    events = run(tmp_path, finished=False)
    followed = Followed(RunDirectory(events.parent))

    async def told() -> tuple[dict[str, int], list[str]]:
        whole = json.loads(await followed.whole())
        return whole["present"], [row[-1] for row in whole["nodes"]["rows"]]

    with events.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert await told() == ({"nodes": 2, "clients": 20}, ["", ""])
    ended = "the top server ended"
    assert await told() == ({"nodes": 0, "clients": 0}, [ended, ended])
    with events.open("ab") as file:  # resumed
        fcntl.flock(file, fcntl.LOCK_EX)
        add(events, {"event": "listening", "address": "127.0.0.1:1"})
        assert await told() == ({"nodes": 0, "clients": 0}, [ended, ended])
        add(events, {"event": "node_joined", "node": "site-1", "clients": 10})
        assert await told() == ({"nodes": 1, "clients": 10}, [ended, ""])
