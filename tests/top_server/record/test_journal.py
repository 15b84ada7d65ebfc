from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from io import FileIO
from pathlib import Path

import pytest

from fedgsp.errors import RunError
from top_server.record import journal as journal_module
from top_server.record import room
from top_server.record.directory import RunDirectory
from top_server.record.events.rounds import RoundFinished
from top_server.record.events.run import ClientsMissing, Listening, RunFinished, StateDamaged
from top_server.record.history import read_lines
from top_server.record.journal import Journal, Line

NOON_IN_PARIS = datetime(2025, 1, 2, 12, 30, 0, 250_000, timezone(timedelta(hours=1)))


def test_an_event_is_on_disk_at_once_with_its_time_in_utc(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with Journal(directory, now=lambda _: NOON_IN_PARIS) as journal:
        journal.record(ClientsMissing(clients=range(3)))
        assert read_lines(directory.events) == [
            {
                "time": "2025-01-02T11:30:00.250Z",
                "event": "clients_missing",
                "clients": [0, 1, 2],
            }
        ]


def test_subscribers_hear_what_is_written_until_they_leave(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    heard: list[Line] = []
    with Journal(directory) as journal:
        leave = journal.subscribe(heard.append)
        journal.record(RunFinished(rounds=1, accuracy=float("nan"), seconds=1.0))
        leave()
        leave()
        journal.record(Listening(address="x"))
    assert heard == read_lines(directory.events)[:1]
    assert heard[0]["accuracy"] is None


def test_a_failing_subscriber_ends_nothing_but_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    calls: list[str] = []

    def fail(event: Line) -> None:
        calls.append(event["event"])
        raise OSError("the terminal is gone")

    with Journal(RunDirectory(tmp_path)) as journal:
        journal.subscribe(fail)
        journal.subscribe(lambda event: heard.append(event["event"]))
        journal.record(Listening(address="x"))
        journal.record(StateDamaged(reason="cut"))
    assert calls == ["listening"]
    assert heard == ["listening", "state_damaged"]
    assert "the terminal is gone" in caplog.text


def test_a_finished_round_is_a_row_of_the_history_and_an_event(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal:
        row = journal.finish_round(RoundFinished(round=1, accuracy=float("nan"), accuracy_per_client={3: 0.5}))
    assert read_lines(directory.history) == [row]
    (event,) = read_lines(directory.events)
    assert {name: event[name] for name in row} == row
    assert row["accuracy"] is None
    assert row["accuracy_per_client"] == {"3": 0.5}


def test_a_full_disk_ends_the_run_with_a_reason_if_nobody_makes_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room, "MOST_S", 0.0)
    monkeypatch.setattr(room._Disk, "full_since", 0.0)
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal, open("/dev/full", "ab", buffering=0) as full:
        monkeypatch.setattr(journal, "_events", full)
        with pytest.raises(RunError, match="cannot be written: No space left"):
            journal.record(Listening(address="x"))
        monkeypatch.undo()


def test_times_are_those_of_the_clock_by_default(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    before = datetime.now(UTC)
    with Journal(directory) as journal:
        journal.record(Listening(address="x"))
    time = datetime.fromisoformat(read_lines(directory.events)[0]["time"])
    assert before - timedelta(milliseconds=1) <= time <= datetime.now(UTC)


def test_what_was_written_of_an_event_is_taken_back_if_the_rest_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory, write = RunDirectory(tmp_path), journal_module._write

    def torn(file: FileIO, data: bytes) -> int:
        if data.startswith(b"{") and b"second" in data:
            return write(file, data[:20])
        if not data.startswith(b"{"):
            raise RunError("the disk has gone")
        return write(file, data)

    monkeypatch.setattr(journal_module, "_write", torn)
    with Journal(directory) as journal:
        journal.record(Listening(address="first"))
        with pytest.raises(RunError, match="the disk has gone"):
            journal.record(Listening(address="second"))
        journal.record(Listening(address="third"))
    assert [event["address"] for event in read_lines(directory.events)] == ["first", "third"]
