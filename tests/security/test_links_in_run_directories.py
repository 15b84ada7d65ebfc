"""A run directory that somebody else has made: a link in it does not lead a command to other files of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgsp.errors import UserError
from fedgsp.files import appending
from tests.top_server.report.test_report import FINISHED, STARTED, recorded, two_rounds
from top_server.cli import app
from top_server.record.directory import RunDirectory
from top_server.record.journal import Journal

MINE = "the only copy\n"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "authorized_keys"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("name", ["events.jsonl", "history.jsonl"])
def test_the_record_is_not_written_through_a_link(name: str, tmp_path: Path, keys: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    (directory.path / name).symlink_to(keys)
    with pytest.raises(UserError, match="it is a link, which is not followed here"):
        Journal(directory)
    assert keys.read_text() == MINE


def test_a_log_is_not_written_through_a_link(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "node-0.log").symlink_to(keys)
    with pytest.raises(OSError, match="symbolic links"):
        appending(tmp_path / "node-0.log")


def test_a_report_does_not_replace_what_a_link_in_the_run_directory_leads_to(tmp_path: Path, keys: Path) -> None:
    run = recorded(tmp_path / "run", STARTED, FINISHED, rows=two_rounds())
    (run / "report.html").symlink_to(keys)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code != 0
    assert "it is a link, which is not followed here" in str(result.exception)
    assert keys.read_text() == MINE
    linked = tmp_path / "report.html"
    linked.symlink_to(keys)
    assert CliRunner().invoke(app, ["report", str(run), "--out", str(linked)]).exit_code == 0  # the user's own link
    assert keys.read_text().startswith("<!DOCTYPE html>")
