"""An end before the last round is recorded, with its reason."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import RunError
from fedgsp.settings.run import RunConfig
from top_server.ending import run_recorded
from top_server.record.directory import RunDirectory, is_worth_keeping, prepare
from top_server.record.events.run import RunFinished
from top_server.record.history import read_lines
from top_server.record.journal import Journal


def ended(path: Path, main: Coroutine[Any, Any, None]) -> int:
    with Journal(prepare(RunConfig(run_dir=path))) as journal:
        return run_recorded(main, journal)


def last(path: Path) -> dict[str, Any]:
    return {name: value for name, value in read_lines(RunDirectory(path).events)[-1].items() if name != "time"}


async def failing(error: Exception) -> None:
    raise error


def test_an_error_is_recorded_with_its_remedy_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        ended(tmp_path / "run", failing(RunError("nobody trained", "lower --learning-rate")))
    expected = {"event": "run_failed", "reason": "nobody trained", "remedy": "lower --learning-rate", "code": 6}
    assert last(tmp_path / "run") == expected


def test_an_error_of_the_program_is_recorded_too(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        ended(tmp_path / "run", failing(ZeroDivisionError("division by zero")))
    assert last(tmp_path / "run")["reason"] == "an error in the program: ZeroDivisionError: division by zero"
    assert last(tmp_path / "run")["code"] == 1


def test_a_signal_is_recorded(tmp_path: Path) -> None:
    async def stopped() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    assert ended(tmp_path / "run", stopped()) == 143
    assert last(tmp_path / "run") == {"event": "run_stopped", "code": 143}


def test_a_signal_after_the_end_of_the_run_ends_a_finished_run(tmp_path: Path) -> None:
    """Its nodes were leaving: whoever stopped it is not told to resume it."""
    path = tmp_path / "run"
    with Journal(prepare(RunConfig(run_dir=path))) as journal:

        async def stopped() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.Event().wait()
            finally:
                journal.record(RunFinished(rounds=1, accuracy=0.5, seconds=1.0))

        assert run_recorded(stopped(), journal) == 0
    assert last(path)["event"] == "run_finished"


def test_a_run_that_comes_to_its_end_records_that_itself(tmp_path: Path) -> None:
    assert ended(tmp_path / "run", asyncio.sleep(0)) == 0
    assert read_lines(RunDirectory(tmp_path / "run").events) == []


def test_a_start_that_failed_before_its_first_round_is_still_not_worth_keeping(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        ended(tmp_path / "run", failing(RunError("no node came")))
    assert not is_worth_keeping(RunDirectory(tmp_path / "run"))


def test_a_full_disk_does_not_hide_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(prepare(RunConfig(run_dir=tmp_path / "run"))) as journal:

        def full(_: object) -> None:
            raise RunError("events.jsonl cannot be written", "make room on that disk")

        monkeypatch.setattr(journal, "record", full)
        with pytest.raises(RunError, match="nobody trained"):
            run_recorded(failing(RunError("nobody trained")), journal)
