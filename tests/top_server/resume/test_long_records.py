"""The record of a long run is read line by line: its events may need gigabytes of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgsp.errors import DataError
from tests.support.little_memory import allocating_less_than
from tests.top_server.resume.test_find import BEGIN, hop, recorded, started
from top_server.record import history
from top_server.record.directory import RunDirectory, is_worth_keeping
from top_server.record.history import lines_of
from top_server.recorded import recorded as said
from top_server.resume import find as resuming

ROUNDS, CLIENTS = 400, 50
#: Bytes. The events have four megabytes as text, and more as objects.
LITTLE = 1_500_000


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run whose state was removed, so that it begins anew, with the hops of many rounds."""
    made = recorded(tmp_path, [*BEGIN, started(list(range(CLIENTS)))])
    with made.events.open("a") as file:
        for number in range(2, ROUNDS):
            for client in range(CLIENTS):
                file.write(json.dumps({**hop(0, client, client), "round": number, "turn": 1.0, "samples": 9}) + "\n")
    made.config.write_text("")
    assert made.events.stat().st_size > 2 * LITTLE
    return made


def test_a_run_is_found_for_its_resumption(directory: RunDirectory) -> None:
    with allocating_less_than(LITTLE):
        assert resuming._read(directory, "--resume", False).interrupted is not None
        resuming.mend(directory, 0)
        assert is_worth_keeping(directory)
        assert said(directory).runs == {"abc"}


def test_a_line_that_nothing_writes_is_no_torn_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_LINE", 100)
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n' + '{"b": "' + "x" * 100 + '"}\n')
    with pytest.raises(DataError, match="line 2 is longer than any that is written"):
        list(lines_of(path))
