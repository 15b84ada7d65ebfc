"""A file from outside, whatever is in it, ends in one line that names it: no traceback, no wait, no full memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp import files
from fedgsp.commands import run as run_command
from fedgsp.errors import ConfigError, DataError, UserError
from fedgsp.settings.checks import check
from fedgsp.settings.files import dump, load
from fedgsp.settings.run import RunConfig
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.tasks.reading import reading
from top_server.cli import app
from top_server.pictures.distances import read_distances
from top_server.profiles.distance_file import read_file as read_recorded
from top_server.record import model_files
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.resume import find as resuming
from top_server.reveals.spool import UpdateSpool

DEEP = 200_000
#: Texts that are no JSON for us, or not what is expected.
JSONS = {
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"clients":' * DEEP,
    "a deep value": b'{"clients": [0], "distances": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a long number": b'{"clients": [' + b"9" * 5000 + b'], "distances": [[0]]}',
    "a large number": b'{"clients": [0], "distances": [[1' + b"0" * 400 + b"]]}",
    "NaN": b'{"clients": [0], "distances": [[NaN]]}',
    "infinity": b'{"clients": [0], "distances": [[-Infinity]]}',
    "a repeated name": b'{"clients": [0], "distances": [[0]], "clients": [0]}',
    "a NUL byte": b'{"clients": [0]\0, "distances": [[0]]}',
    "other bytes": b'{"clients": [0], "distances": [[0]], "\xff": 0}',
    "a list": b"[]",
    "a text": b'"clients"',
    "null": b"null",
    "nothing": b"",
}
TOMLS = {
    "deep lists": b"rounds = " + b"[" * DEEP,
    "deep tables": b"rounds = " + b"{a = " * DEEP,
    "a long number": b"rounds = " + b"9" * 5000,
    "a large number": b"rounds = 1" + b"0" * 400,
    "a long hexadecimal number": b"seed = 0x" + b"f" * 5000,
    "a large share": b"alpha = 1" + b"0" * 400,
    "a large option": b"[task_option]\nseed = 0x" + b"f" * 5000,
    "a large number in a list": b"outgoing = [0x" + b"f" * 5000 + b"]",
    "NaN": b"alpha = nan",
    "infinity": b"alpha = inf",
    "a repeated name": b"rounds = 1\nrounds = 2",
    "a NUL byte": b'scheme = "a\0"',
    "other bytes": b'scheme = "\xff"',
    "a table": b"[rounds]\na = 1",
    "too many bytes": b"#" * (files.MOST_OF_SETTINGS + 1),
}


def things(folder: Path) -> dict[str, Path]:
    """What may stand where a file should."""
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "endless").symlink_to("/dev/zero")
    return {name: folder / name for name in ("fifo", "folder", "loop", "endless")}


def refused(read: Callable[[Path], object], path: Path, content: bytes | None = None) -> UserError:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(path)
    assert path.name in caught.value.what
    assert len(str(caught.value)) < 2000
    return caught.value


def settings_of(path: Path) -> None:
    try:
        check(load(RunConfig, path), {"scheme": ["fedgsp"]})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


@pytest.mark.parametrize("name", TOMLS)
def test_a_file_of_settings(name: str, tmp_path: Path) -> None:
    assert isinstance(refused(settings_of, tmp_path / "settings.toml", TOMLS[name]), ConfigError)


@pytest.mark.parametrize("name", ["fifo", "folder", "loop", "endless"])
def test_something_else_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    path = things(tmp_path)[name]
    readers: list[Callable[[Path], object]] = [
        *(settings_of, read_recorded, read_distances, model_files.load),
        *([] if name == "loop" else [read_lines]),
    ]
    for read in readers:
        refused(read, path)
    if name not in ("folder", "loop"):
        with pytest.raises(DataError, match="not a regular file"), reading(path, "a file"):
            raise AssertionError
        os.replace(path, tmp_path / "r-client-0.head.safetensors")
        personal = PersonalState(tmp_path)
        personal.open("r")
        with pytest.raises(DataError, match="not a regular file"):
            personal.load(0, "head")


@pytest.mark.parametrize("name", JSONS)
def test_a_file_of_distances(name: str, tmp_path: Path) -> None:
    assert isinstance(refused(read_recorded, tmp_path / "distances.json", JSONS[name]), ConfigError)
    if name not in ("a large number",):
        assert isinstance(refused(read_distances, tmp_path / "distances.json", JSONS[name]), DataError)


@pytest.mark.parametrize("name", [name for name in JSONS if name not in ("nothing", "a large number")])
def test_a_line_of_a_record(name: str, tmp_path: Path) -> None:
    error = refused(read_lines, tmp_path / "events.jsonl", b'{"event": "listening"}\n' + JSONS[name] + b"\n")
    assert "line 2" in error.what


def test_the_bound_holds_for_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert files.read_file(path, 100) == bytes(100)
    with pytest.raises(OSError, match="more than 99 bytes"):
        files.read_file(path, 99)
    assert files.read_file(Path("/proc/self/status"), 1 << 20)  # whose size is told as 0


def test_a_number_of_a_flag_that_no_float_can_hold_is_a_mistake_like_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("9" * 400, "9" * 5000):
        monkeypatch.setattr("sys.argv", ["top-server", "--rounds", value])
        assert run_command(app, "top-server") == ConfigError.exit_code
        assert capsys.readouterr().err.startswith("error: ")


# --- --resume


BEGUN = {
    **{"run": "abc", "round": 0, "clients": 1, "nodes": 1, "rounds": 9, "scheme": "fedgsp", "head": []},
    "directory": "/",
}
STATE: dict[str, Any] = {
    "nodes": {"n0": [0]},
    "away": [],
    "offences": {},
    "owners": {},
    "constants": {},
    "config": "",
    "files": {},
    "models": {},
    "slots": {},
}


def directory(folder: Path, document: bytes | None = None, round: str = "round-0001", **begun: Any) -> RunDirectory:
    found = RunDirectory(folder)
    found.config.write_text(dump(RunConfig()))
    lines = [{"time": "", "event": "listening", "address": begun.pop("address", "127.0.0.1:1")}]
    lines.append({"time": "", "event": "run_started", **BEGUN, **begun})
    found.events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if document is not None:
        found.history.write_text('{"round": 1}\n')
        (found.state / round).mkdir(parents=True)
        (found.state / round / "state.json").write_bytes(document)
    return found


@pytest.mark.parametrize("name", [name for name in JSONS if name not in ("NaN", "infinity")])
def test_a_state_of_a_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"state\.json"):
        resuming.find(directory(tmp_path, JSONS[name]))


@pytest.mark.parametrize("name", ["fifo", "folder", "loop", "endless"])
def test_something_else_in_place_of_a_file_of_a_state(name: str, tmp_path: Path) -> None:
    run = directory(tmp_path, json.dumps(STATE).encode())
    things(run.state)[name].rename(run.state / "round-0001" / "update-0.npy")
    with pytest.raises(DataError, match=r"update-0\.npy"):
        resuming.find(run)


GONE = {"node": "n1", "clients": [1], "reason": "", "at": 0.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": {"n0": [{}]}},
        {"nodes": {"n0": [True]}},
        {"nodes": {"n0": 1}},
        *({"away": [one]} for one in (1, {}, GONE | {"clients": ["1"]}, GONE | {"at": None}, GONE | {"at": math.inf})),
        {"offences": {"a": 1}},
        {"files": []},
    ],
)
def test_a_state_with_something_else_in_it(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"state|damaged"):
        resuming.find(directory(tmp_path, json.dumps(STATE | wrong).encode()))


@pytest.mark.parametrize("round", ["round-99999999999999999999", "round-1999999999"])
def test_a_state_of_a_round_that_never_was(round: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lacks rounds"):
        resuming.find(directory(tmp_path, json.dumps(STATE).encode(), round))


@pytest.mark.parametrize("run", ["", "../../etc", "a/b", "a b", "\ud800", "\x1b[31m", 7, None, ["a"], "a" * 100])
def test_an_id_of_a_run_that_is_none(run: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="damaged"):
        resuming.find(directory(tmp_path, run=run))


@pytest.mark.parametrize("address", ["", "unix:/run/x", "a b:1", 7, None, "127.0.0.1:99999"])
def test_an_address_that_is_none(address: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        resuming.find(directory(tmp_path, address=address))


@pytest.mark.parametrize("folder", ["/nobody/there", "/\0", 7, None])
def test_a_working_directory_that_is_none(folder: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        resuming.work_there(resuming.find(directory(tmp_path, directory=folder)), RunConfig())


def test_the_settings_in_a_state_that_are_none(tmp_path: Path) -> None:
    for text in ("rounds = ", "a = " + "[" * DEEP):
        folder = tmp_path / str(len(text))
        folder.mkdir()
        found = resuming.find(directory(folder, json.dumps(STATE | {"config": text}).encode()))
        with pytest.raises(DataError, match="is not TOML"):
            resuming.check_settings(found, RunConfig())


def test_no_file_of_a_state_is_unpickled(tmp_path: Path) -> None:
    """A model is safetensors, an update a plain array; `pickle` is imported by none of our files (test_layers)."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    np.save(tmp_path / "update-0.npy", np.array([Evil()], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        UpdateSpool(tmp_path).load(tmp_path)
    assert not (tmp_path / "ran").exists()
