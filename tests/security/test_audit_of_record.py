"""A log from which rounds are missing, and files beside it that are not those of the run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgsp.errors import DataError
from fedgsp.security.chained import BrokenError
from fedgsp.settings.run import RunConfig
from top_server import audit
from top_server.cli import app
from top_server.record.audit import AuditLog
from top_server.record.directory import RunDirectory, write_config
from top_server.resume.audit import opened

STARTED, FINISHED = '{"event": "run_started", "run": "run"}\n', '{"event": "run_finished"}\n'


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path)
    found.config.write_text("seed = 1\n")
    found.events.write_text(STARTED)
    found.history.write_text("")
    return found


def rows(directory: RunDirectory, *rounds: int) -> None:
    directory.history.write_text("".join(json.dumps({"round": number}) + "\n" for number in rounds))


def sealed(log: AuditLog, *rounds: int) -> None:
    for number in rounds:
        log.seal("run", number)


def settled(log: AuditLog, directory: RunDirectory) -> None:
    write_config(directory, RunConfig(rounds=2), log)


def finished(directory: RunDirectory) -> None:
    """A run of two rounds, at whose begin settings were chosen."""
    with opened(directory, "run", None, None, resumed=False) as log:
        settled(log, directory)
        sealed(log, 1, 2)
        log.close(True, "the run is finished")
    rows(directory, 1, 2)
    directory.events.write_text(STARTED + FINISHED)


def test_rounds_that_are_missing_before_a_later_round_are_named(directory: RunDirectory) -> None:
    """The log was cut off after round 2, and the run was resumed from round 4 all the same."""
    with opened(directory, "run", None, None, resumed=False) as log:
        sealed(log, 1, 2)
    with opened(directory, "run", None, None, resumed=True) as log:
        sealed(log, 5, 6)
        log.close(True, "the run is finished")
    rows(directory, 1, 2, 3, 4, 5, 6)
    for events in (STARTED, STARTED + FINISHED):
        directory.events.write_text(events)
        with pytest.raises(BrokenError) as caught:
            audit.verify(directory)
        assert caught.value.number == 5
        assert caught.value.why == "lines are missing before it: history.jsonl has rounds 3-4"
    result = CliRunner().invoke(app, ["audit", str(directory.path)])
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 4


def test_a_round_that_was_played_again_or_has_no_seal_yet_is_not_missing(directory: RunDirectory) -> None:
    with opened(directory, "run", None, None, resumed=False) as log:
        sealed(log, 1, 2)
    with opened(directory, "run", None, None, resumed=True, done=1) as log:  # killed before the state of round 2
        sealed(log, 2)
        rows(directory, 1, 2, 3)
        assert audit.verify(directory).rounds == 2
        sealed(log, 3)
        log.close(True, "the run is finished")
    directory.events.write_text(STARTED + FINISHED)
    assert audit.verify(directory).whole
    rows(directory, 1, 2, 3, 4)
    with pytest.raises(BrokenError, match=r"at the end: history\.jsonl has round 4"):
        audit.verify(directory)


def test_a_finished_run_whose_extension_was_killed_before_its_first_event_is_still_good(
    directory: RunDirectory,
) -> None:
    finished(directory)
    with opened(directory, "run", None, None, resumed=True, done=2, extends=True) as log:
        log.note("refused", node="stranger")
    found = audit.verify(directory)
    assert (found.ended, found.whole) == (True, False)


@pytest.mark.parametrize("change", ["digit", "empty"])
def test_settings_that_are_not_those_of_the_run_are_named(directory: RunDirectory, change: str) -> None:
    finished(directory)
    assert audit.verify(directory).whole
    text = directory.config.read_text()
    directory.config.write_text(text.replace("rounds = 2", "rounds = 3") if change == "digit" else "")
    result = CliRunner().invoke(app, ["audit", str(directory.path)])
    assert isinstance(result.exception, DataError)
    assert str(result.exception).startswith(f"{directory.config} is not what the run had")


def test_the_settings_before_they_were_chosen_count_until_the_first_round_is_sealed(directory: RunDirectory) -> None:
    before = directory.config.read_text()
    with opened(directory, "run", None, None, resumed=False) as log:
        settled(log, directory)
        after = directory.config.read_text()
        for text in (before, after):  # killed before the file was written, and after it
            directory.config.write_text(text)
            audit.verify(directory)
        sealed(log, 1)
        audit.verify(directory)
        directory.config.write_text(before)
        with pytest.raises(DataError, match="is not what the run had"):
            audit.verify(directory)


def test_settings_that_may_change_when_a_run_is_resumed_or_extended_are_those_of_its_last_start(
    directory: RunDirectory,
) -> None:
    finished(directory)
    directory.config.write_text(directory.config.read_text() + "# a person was here\n")
    with opened(directory, "run", None, None, resumed=True, done=2, extends=True) as log:
        write_config(directory, RunConfig(rounds=3), log)
        log.note("extended", rounds=3)
        sealed(log, 3)
        log.close(True, "the run is finished")
    rows(directory, 1, 2, 3)
    assert audit.verify(directory).settings == [hashlib.sha256(directory.config.read_bytes()).hexdigest()]


def test_the_settings_of_a_log_that_does_not_have_them_are_not_compared(directory: RunDirectory) -> None:
    """An earlier version did not tell what it wrote."""
    with opened(directory, "run", None, None, resumed=False) as log:
        write_config(directory, RunConfig(rounds=2))
        sealed(log, 1, 2)
        log.close(True, "the run is finished")
    rows(directory, 1, 2)
    assert audit.verify(directory).whole
    with opened(directory, "run", None, None, resumed=True) as log:
        write_config(directory, RunConfig(rounds=3))
        log.note("extended", rounds=3)
    assert not audit.verify(directory).finished


@pytest.mark.parametrize(("name", "what"), [("events", "the start of the run"), ("history", "no row")])
def test_an_empty_record_beside_a_log_with_rounds_is_named(directory: RunDirectory, name: str, what: str) -> None:
    finished(directory)
    path: Path = getattr(directory, name)
    path.write_text("")
    with pytest.raises(DataError, match=rf"{name}\.jsonl has .*{what}.*, and the audit log has 2 rounds"):
        audit.verify(directory)
