from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError, UserError
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from tests.support.events import named
from top_server.record.directory import (
    RunDirectory,
    check_free,
    claim,
    is_worth_keeping,
    prepare,
    remove,
    usable,
)
from top_server.record.events.run import Listening
from top_server.record.journal import Journal

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_the_settings_in_it_repeat_the_run_elsewhere(tmp_path: Path) -> None:
    config = RunConfig(rounds=3, task_option={"clients": "8"}, run_dir=tmp_path / "a" / "b")
    directory = prepare(config)
    assert directory.path == tmp_path / "a" / "b"
    assert directory.models.is_dir()
    assert load(RunConfig, directory.config) == dataclasses.replace(config, run_dir=None)


def test_its_name_is_time_and_scheme_and_never_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = prepare(RunConfig(), NOW), prepare(RunConfig(), NOW)
    assert first.path == Path("runs/20250102T030405Z-fedgsp")
    assert second.path == Path("runs/20250102T030405Z-fedgsp-2")


def begun(directory: RunDirectory, *events: str) -> None:
    with Journal(directory) as journal:
        for event in events:
            journal.record(named(event))


@pytest.mark.parametrize("left", ["event", "row", "model", "state"])
def test_a_directory_takes_one_run_only(tmp_path: Path, left: str) -> None:
    directory = prepare(RunConfig(run_dir=tmp_path))
    begun(directory, "listening", "run_started", *(["round_started"] if left == "event" else []))
    if left == "row":
        directory.history.write_text('{"round": 1}\n')
    elif left == "model":
        (directory.models / "round-0001.safetensors").touch()
    elif left == "state":
        (directory.state / "round-0000").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"already holds a run.*another directory"):
        prepare(RunConfig(run_dir=tmp_path))


@pytest.mark.parametrize("events", [["listening", "node_refused"], ["listening", "node_joined", "run_started"]])
def test_a_run_takes_the_place_of_one_that_ended_before_its_first_round(tmp_path: Path, events: list[str]) -> None:
    begun(prepare(RunConfig(run_dir=tmp_path, min_nodes=4)), *events)
    directory = prepare(RunConfig(run_dir=tmp_path, min_nodes=3))
    assert load(RunConfig, directory.config).min_nodes == 3
    assert directory.events.read_text() == ""


def test_no_run_takes_the_place_of_one_that_still_waits_for_nodes(tmp_path: Path) -> None:
    directory = prepare(RunConfig(run_dir=tmp_path, min_nodes=4))
    with Journal(directory) as journal:
        journal.record(Listening(address="x"))
        with pytest.raises(ConfigError, match="another top server records in"):
            prepare(RunConfig(run_dir=tmp_path, min_nodes=3))
    assert load(RunConfig, directory.config).min_nodes == 4
    assert "listening" in directory.events.read_text()


def not_begun(path: Path) -> RunDirectory:
    """What a start leaves whose nodes joined and were never given work."""
    directory = prepare(RunConfig(run_dir=path))
    begun(directory, "listening", "waiting_for_nodes", "node_joined", "node_refused", "node_left")
    begun(directory, "nodes_refused", "node_revoked")
    (directory.state / "node-0").mkdir(parents=True)
    directory.logs.mkdir()
    (directory.logs / "node-0.log").write_text("one\ntwo\nthree\nfour\nfive\n")
    return directory


def test_a_start_at_which_nothing_happened_is_removed_with_its_short_logs(tmp_path: Path) -> None:
    directory = not_begun(tmp_path / "run")
    assert not is_worth_keeping(directory)
    remove(directory, folder_too=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", ["run_started", "local_run_started", "long log", "row", "model", "state"])
def test_what_a_person_could_need_is_worth_keeping(tmp_path: Path, kept: str) -> None:
    directory = not_begun(tmp_path)
    match kept:
        case "long log":
            with (directory.logs / "node-0.log").open("a") as log:
                log.write("six: not quoted by an error message\n")
        case "row":
            directory.history.write_text('{"round": 1}\n')
        case "model":
            (directory.models / "round-0001.safetensors").touch()
        case "state":
            (directory.state / "round-0000").mkdir()
        case event:
            begun(directory, event)
    assert is_worth_keeping(directory)


def test_other_files_survive_a_removal(tmp_path: Path) -> None:
    directory = not_begun(tmp_path / "run")
    (directory.path / "notes.txt").touch()
    remove(directory, folder_too=True)
    assert [path.name for path in directory.path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["config.toml", "history.jsonl", "events.jsonl", "models"])
def test_no_file_of_another_run_is_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(ConfigError, match=f"already holds a run.*{name}"):
        prepare(RunConfig(run_dir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_other_files_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    prepare(RunConfig(run_dir=tmp_path))


@pytest.mark.parametrize("below", ["file", "file/run", "n" * 300])
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--run-dir .* cannot be used: .*; give a directory"):
        prepare(RunConfig(run_dir=tmp_path / below))


def test_a_place_that_may_not_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match="--run-dir /proc/fedgsp cannot be used"):
        prepare(RunConfig(run_dir=Path("/proc/fedgsp")))


# --- before there is a run


def test_claiming_makes_the_directory_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "b")
    for _ in range(2):
        claim(directory)
        assert list(directory.path.iterdir()) == []
        check_free(directory)
    prepare(RunConfig(run_dir=directory.path))


def test_looking_whether_a_place_is_free_makes_nothing(tmp_path: Path) -> None:
    check_free(RunDirectory(tmp_path / "a" / "b"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("look", [check_free, claim])
def test_a_file_is_no_place_and_the_flag_that_named_it_is_told(
    look: Callable[[RunDirectory, str], None], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--local-run .*/file cannot be used: .*; give a directory"):
        look(RunDirectory(tmp_path / "file"), "--local-run")


def test_a_full_disk_is_told_by_its_reason(tmp_path: Path) -> None:
    told = []
    for reason in (OSError(errno.ENOSPC, "No space left on device"), OSError("odd")):
        with pytest.raises(UserError) as error, usable(RunDirectory(tmp_path)):
            raise reason
        told.append((error.value.exit_code, str(error.value)))
    assert told == [
        (6, f"--run-dir {tmp_path} cannot be written: No space left on device; make room on that disk"),
        (2, f"--run-dir {tmp_path} cannot be used: odd; give a directory that you may write to"),
    ]
