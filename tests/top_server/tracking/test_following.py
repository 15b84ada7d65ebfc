"""Trackers beside a run: what fails is tried again, and nothing of it reaches the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import DataError, PeerError
from tests.contracts.tracking import points_of
from tests.top_server.tracking.records import record
from top_server.record.directory import RunDirectory
from top_server.record.events.rounds import RoundFinished
from top_server.record.events.run import RunFailed, RunFinished, RunResumed, RunStarted
from top_server.record.journal import Journal
from top_server.tracking.base import About, Outcome, Points, Tracker, Tracking, thinned
from top_server.tracking.following import exported, tracked

BEGIN: dict[str, Any] = {
    **{"run": "abcd1234", "directory": "/", "round": 0, "clients": 2, "nodes": 1, "rounds": 9, "scheme": "hcct"},
    "head": (),
}
DEADLINE_S = 30.0


class Kept(Tracking):
    """Keeps what comes in memory; `fails` is called before each step, and may raise."""

    def __init__(self, fails: Callable[[str], None] = lambda _: None, has: int = 0) -> None:
        self.fails, self.has = fails, has
        self.rounds: list[int] = []
        self.outcomes: list[Outcome] = []
        self.came = threading.Condition()

    def begin(self, about: About) -> int:
        self.fails("begin")
        return self.has

    def add(self, points: Points) -> None:
        self.fails("add")
        with self.came:
            self.rounds.append(points.round)
            self.came.notify_all()

    def end(self, outcome: Outcome) -> None:
        self.fails("end")
        self.outcomes.append(outcome)

    def has_come(self, number: int) -> bool:
        with self.came:
            return self.came.wait_for(lambda: number in self.rounds, DEADLINE_S)


def tracker(kept: Kept) -> Tracker:
    return Tracker(help="in memory", code=lambda _: kept, kind="tracker", name="kept")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = record(tmp_path)
    found.events.unlink()
    return found


def assert_(true: bool) -> None:
    assert true


def failing_at(*calls: int) -> Callable[[str], None]:
    """Raises at these calls, counted from 1."""
    count = 0

    def fails(_step: str) -> None:
        nonlocal count
        count += 1
        if count in calls:
            raise ConnectionError("nobody is there")

    return fails


def test_a_tracker_follows_each_round_and_hears_of_the_end(directory: RunDirectory) -> None:
    kept = Kept()
    with Journal(directory) as journal, tracked(journal, directory, [(tracker(kept), None)]):
        journal.record(RunStarted(**BEGIN))
        for number in (1, 2):
            journal.finish_round(RoundFinished(round=number, accuracy=0.5))
            assert kept.has_come(number)
        journal.record(RunFailed(reason="all nodes are lost", remedy="start them", code=6))
    assert kept.rounds == [1, 2]
    assert [(one.kind, one.reason) for one in kept.outcomes] == [("failed", "all nodes are lost; start them")]


def test_a_tracker_that_was_away_gets_all_it_has_missed_and_warns_once(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(failing_at(1, 3, 5))  # begin, the first round, and the second one
    with Journal(directory) as journal, tracked(journal, directory, [(tracker(kept), None)]):
        journal.record(RunStarted(**BEGIN))
        for number in range(1, 6):
            journal.finish_round(RoundFinished(round=number, accuracy=0.5))
        journal.record(RunFinished(rounds=5, accuracy=0.5, seconds=1.0))
    exported(tracker(resumed := Kept(has=max(kept.rounds, default=0))), None, directory.path)
    assert kept.rounds + resumed.rounds == [1, 2, 3, 4, 5]
    warnings = [one.getMessage() for one in caplog.records]
    assert len(warnings) == 1
    assert "tracker kept fails" in warnings[0]
    assert "ConnectionError: nobody is there" in warnings[0]


def test_a_resumed_run_sends_no_round_twice(directory: RunDirectory) -> None:
    first, second = Kept(), Kept(has=2)
    with Journal(directory) as journal, tracked(journal, directory, [(tracker(first), None)]):
        journal.record(RunStarted(**BEGIN))
        for number in (1, 2):
            journal.finish_round(RoundFinished(round=number, accuracy=0.5))
    with Journal(directory) as journal, tracked(journal, directory, [(tracker(second), None)]):
        journal.record(RunResumed(**{**BEGIN, "round": 1}))
        for number in (2, 3):  # the second round was not saved
            journal.finish_round(RoundFinished(round=number, accuracy=0.5))
        journal.record(RunFinished(rounds=3, accuracy=0.5, seconds=1.0))
    assert (first.rounds, second.rounds) == ([1, 2], [3])
    assert [one.kind for one in (*first.outcomes, *second.outcomes)] == ["open", "finished"]


def test_a_tracker_that_hangs_holds_up_nothing_but_the_end_for_its_deadline(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    kept = Kept(lambda _: assert_(let_go.wait(DEADLINE_S)))
    begin = time.monotonic()
    with Journal(directory) as journal, tracked(journal, directory, [(tracker(kept), None)], end_s=0.1):
        journal.record(RunStarted(**BEGIN))
        for number in range(1, 200):
            journal.finish_round(RoundFinished(round=number, accuracy=0.5))
    assert time.monotonic() - begin < DEADLINE_S
    assert "did not come to its end" in caplog.text
    let_go.set()
    assert kept.has_come(199)


def test_a_run_that_never_began_is_not_tracked(directory: RunDirectory) -> None:
    kept = Kept()
    with Journal(directory) as journal, tracked(journal, directory, [(tracker(kept), None)]):
        journal.record(RunFailed(reason="nobody came", remedy="start nodes", code=5))
    assert (kept.rounds, kept.outcomes) == ([], [])


def test_an_export_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"tracker kept fails: ConnectionError: nobody is there; correct that"):
        exported(tracker(Kept(failing_at(1))), None, record(tmp_path).path)
    with pytest.raises(DataError, match=r"events\.jsonl cannot be read"):
        exported(tracker(Kept()), None, tmp_path / "nowhere")


def test_a_tracker_can_leave_clients_out() -> None:
    class Options:
        clients = False

    assert "client/0/train_loss" in thinned(points_of(1), None).values
    assert [name for name in thinned(points_of(1), Options()).values if name.startswith("client/")] == []
