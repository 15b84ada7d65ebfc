"""A clock that was set back while the top server was away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from top_server import audit
from top_server.record.audit import AuditLog, serials
from top_server.record.directory import RunDirectory
from top_server.resume.audit import opened

YEAR_NS = 365 * 86400 * 10**9


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path)
    for path in (found.config, found.events, found.history):
        path.write_text("")
    found.events.write_text('{"event": "run_started", "run": "run"}\n')
    return found


def order(log: AuditLog, group: int) -> int:
    """The number of an order that the log takes."""
    serial = next(log.serials)
    told = {"program": "relay", "chained": True, "manager": "m0", "members": [[0, "n0"]], "own_starts": []}
    log.note("ordered", run="run", round=1, group=group, serial=serial, finished=0, start=None, reveal=None, **told)
    return serial


def test_a_run_can_be_resumed_again_and_again(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, given = time.time_ns(), list[int]()
    for times in range(4):
        monkeypatch.setattr(time, "time_ns", lambda times=times: begin - times * YEAR_NS)
        with opened(directory, "run", None, None, resumed=times > 0) as log:
            given += [order(log, 2 * times), order(log, 2 * times + 1)]
            log.close(False, "the top server stopped")
    assert given == sorted(set(given))
    assert audit.verify(directory).whats["ordered"] == 8


def test_numbers_in_lines_that_a_power_cut_removed_do_not_come_again(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(directory, "run", None, None, resumed=False) as log:
        order(log, 0)
        kept = directory.audit.stat().st_size
        lost = [order(log, group) for group in range(1, 50)]
    with directory.audit.open("r+b") as file:
        file.truncate(kept)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    with opened(directory, "run", None, None, resumed=True) as log:
        assert order(log, 0) > max(lost)


def test_numbers_begin_with_the_time_while_it_grows() -> None:
    assert next(serials(0, 7)) == 7
    assert next(serials(5, YEAR_NS)) == YEAR_NS
