"""What the log says of a run in which nothing happens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from top_server.record.directory import RunDirectory
from top_server.record.events.rounds import GroupFailed, GroupFinished, RoundStarted
from top_server.record.journal import Journal, Line
from top_server.silence import Waiting, watch


def waiting(*events: Line) -> str:
    found = Waiting()
    for event in events:
        found.note(event)
    assert found.events == len(events)
    return str(found)


def test_a_run_says_what_it_waits_for() -> None:
    assert waiting({"event": "listening"}) == "the first round has not begun"
    begun: list[Line] = [
        {"event": "round_started", "round": 3, "teams": [[0, 1], [2], [4, 5]]},
        {"event": "hop_finished", "group": 0, "client": 1},
        {"event": "client_skipped", "group": 2, "client": 4},
        {"event": "hop_finished", "group": 2, "client": 5},
        {"event": "group_finished", "group": 1},
    ]
    told = "round 3, groups without a result: 0 (waits for clients 0), 2 (all its clients have answered)"
    assert waiting(*begun) == told
    assert waiting(*begun, {"event": "client_skipped", "group": 7, "client": 9}) == told
    ended: list[Line] = [{"event": "group_failed", "group": 0}, {"event": "group_finished", "group": 2}]
    assert waiting(*begun, *ended) == "round 3, no group trains"
    assert waiting(*begun, {"event": "round_finished"}) == "round 3, no group trains"


async def test_silence_is_told_after_ten_minutes_and_then_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    slept: list[float] = []
    with Journal(RunDirectory(tmp_path)) as journal:

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 1:
                teams = [[0, 1], [2]]
                journal.record(
                    RoundStarted(round=1, groups=2, sampled_groups=2, clients=3, teams=teams, reason="because")
                )
            if len(slept) == 5:
                journal.record(GroupFinished(round=1, group=0))
                journal.record(GroupFailed(round=1, group=1, reason="it has none"))
            if len(slept) == 7:
                raise RuntimeError("the test ends")

        with pytest.raises(RuntimeError, match="the test ends"):
            await watch(journal, sleep)
        journal.record(GroupFinished(round=1, group=0))  # and nobody listens
    assert slept == [600, 600, 600, 1200, 2400, 600, 600]
    groups = "round 1, groups without a result: 0 (waits for clients 0, 1), 1 (waits for clients 2)"
    assert [record.getMessage() for record in caplog.records] == [
        f"no event for 600 s: {groups}",
        f"no event for 1200 s: {groups}",
        f"no event for 2400 s: {groups}",
        "no event for 600 s: round 1, no group trains",
    ]
