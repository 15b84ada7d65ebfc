"""A run directory that somebody else has made: a link in it does not lead a command to other files of the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgsp.errors import UserError
from fedgsp.files import appending, put
from fedgsp.security.chained import ChainedFile
from fedgsp.settings.run import RunConfig
from fedgsp_node.kept.personal_state import HEAD, PersonalState
from tests.support.sources import files_with
from tests.top_server.report.test_report import FINISHED, STARTED, recorded, two_rounds
from top_server.cli import app
from top_server.record import room
from top_server.record.directory import RunDirectory, check_links, prepare, write_config
from top_server.record.journal import Journal
from top_server.resume import find as resuming

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


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_picture_does_not_replace_what_a_link_in_the_run_directory_leads_to(
    link: Callable[[Path, Path], None], tmp_path: Path, keys: Path
) -> None:
    pytest.importorskip("matplotlib")
    run = recorded(tmp_path / "run", STARTED, FINISHED, rows=two_rounds())
    for command, name in (("picture", "run.png"), ("report", "report.html")):
        link(run / name, keys)
        result = CliRunner().invoke(app, [command, str(run)])
        assert result.exit_code != 0
        assert f"{name} cannot be written" in str(result.exception)
        assert keys.read_text() == MINE


def test_a_file_with_two_names_is_not_written_in_place(tmp_path: Path, keys: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    mine = '{"round": 1}\nhalf a line'
    keys.write_text(mine)
    directory.events.hardlink_to(keys)
    with pytest.raises(UserError, match=r"events.jsonl cannot be written: it is the same file as another one"):
        Journal(directory)
    with pytest.raises(UserError, match="the same file as another one"):
        resuming.mend(directory, 0)
    with pytest.raises(UserError, match="the same file as another one"):
        ChainedFile(directory.events)
    assert keys.read_text() == mine


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_files_that_are_written_whole_take_the_place_of_links(
    link: Callable[[Path, Path], None], tmp_path: Path, keys: Path
) -> None:
    directory, personal = RunDirectory(tmp_path / "run"), PersonalState(tmp_path / "state")
    directory.path.mkdir()
    personal.open("r")
    head = tmp_path / "state" / "r-client-0.head.safetensors"
    written: Mapping[Path, Callable[[], None]] = {
        directory.summary: lambda: room.write_text(directory.summary, "{}\n"),
        directory.config: lambda: write_config(directory, RunConfig()),
        head: lambda: personal.save(0, HEAD, {"a": np.zeros(1)}, "1"),
    }
    for path, write in written.items():
        for name in (
            path,
            path.with_suffix(".new"),
            *(path.with_name(f".{path.name}.{end}") for end in ("new", "tmp")),
        ):
            link(name, keys)
        write()
        assert keys.read_text() == MINE
        assert not path.is_symlink()


@pytest.mark.parametrize("name", ["logs", "state", "models", "summary.json", "logs/node-0.log", "state/local/node-0"])
@pytest.mark.parametrize("target", ["folder", "authorized_keys", "missing"])
def test_a_run_directory_with_links_is_refused(name: str, target: str, tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "run"
    (path / name).parent.mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    (path / name).symlink_to(tmp_path / target)
    for refuse in (
        lambda: prepare(RunConfig(run_dir=path)),
        lambda: check_links(RunDirectory(path), "--resume"),
    ):
        with pytest.raises(UserError, match=rf"{name}; remove the link|already holds a run"):
            refuse()
    assert list((tmp_path / "folder").iterdir()) == []
    assert keys.read_text() == MINE
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("flags", [["--resume"], ["--extend", "--rounds", "9"]])
def test_a_run_with_links_is_not_continued(flags: list[str], tmp_path: Path, keys: Path) -> None:
    run = recorded(tmp_path / "run", STARTED, rows=two_rounds())
    (run / "logs").symlink_to(tmp_path)
    result = CliRunner().invoke(app, [flags[0], str(run), *flags[1:]])
    assert "has a link in it" in str(result.exception)
    assert str(run / "logs") in str(result.exception)


def test_a_run_directory_that_is_a_link_of_the_user_is_used(tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large-disk")
    prepare(RunConfig(run_dir=tmp_path / "run"))
    assert (tmp_path / "large-disk" / "config.toml").is_file()


def test_a_module_of_a_notebook_takes_the_place_of_a_link(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "task.py").symlink_to(keys)
    put(tmp_path / "task.py", b"class Task: ...\n")
    assert keys.read_text() == MINE


#: Calls that write a file, and follow links unless an opener is given.
_WRITES = re.compile(r"\.write_(text|bytes)\(|open\([^\n]*[\"'](w|a|x|r\+)b?\+?[\"'](?!.*opener=)|savefig\(")
#: Files with such calls -> why a link of somebody else cannot be there.
_ELSEWHERE = {
    "fedgsp/processes/apart.py": "/dev/null",
    "fedgsp/processes/children.py": "/dev/null",
    "fedgsp/security/chained.py": "an own os.open with O_NOFOLLOW",
    "fedgsp/files.py": "an own os.open, and the way to append",
    "fedgsp/partition_picture.py": "where the user says",
    "fedgsp/processes/template.py": "in /proc",
    "fedgsp_node/enrolment/client.py": "a folder that was just made",
    "fedgsp_node/tasks/decoded.py": "a folder that was just made",
    "fedgsp_runs/playing.py": "a folder that was just made",
    "top_server/pictures/run.py": "into memory",
    "top_server/record/directory.py": "only a new file",
    "top_server/placing/ray/driver.py": "a descriptor",
    "top_server/report/charts.py": "into memory",
    "top_server/resume/state.py": "a folder that was just made",
    "top_server/reveals/spool.py": "a folder that was just made",
}


def test_no_other_file_of_the_source_writes_through_links() -> None:
    assert files_with(_WRITES) == set(_ELSEWHERE), "use fedgsp.files: put, fresh, appending or in_place"
