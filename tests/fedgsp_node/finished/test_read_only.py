"""What reads a finished run needs to write neither into its directory nor into the state directory of a node."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgsp.errors import DataError
from fedgsp_node.cli import app
from fedgsp_node.kept.personal_state import PERSONAL_MODEL, PersonalState
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run
from tests.support.kept_state import keep
from tests.support.run_directories import RUN, trained, write


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Within, nobody can write there. Root can write in spite of modes, so a mount refuses it."""
    if os.geteuid() != 0:
        folders = [Path(path) for path, _, _ in os.walk(folder)]
        for path in folders:
            path.chmod(0o500)
        yield
        for path in folders:
            path.chmod(0o700)
        return
    try:
        for words in (("--bind", folder, folder), ("-o", "remount,bind,ro", folder)):
            if subprocess.run(["mount", *words], check=False).returncode:
                pytest.skip("this machine lets nobody mount a folder")
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


@pytest.fixture
def backup(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nobody can write, with a run (`run`) and what its node keeps (`state`)."""
    folder = tmp_path / "backup"
    folder.mkdir()
    three = {"clients": "3"}
    write(folder / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, scheme="ditto", task_option=three)
    kept = PersonalState(folder / "state")
    kept.open(RUN)
    for client in range(3):
        keep(kept, client, PERSONAL_MODEL, trained(Digits(3), 2).arrays, 3)
    with read_only(folder):
        yield folder


def test_a_run_and_what_its_node_keeps_are_read_from_a_read_only_folder(backup: Path, tmp_path: Path) -> None:
    for words in (["evaluate"], ["export", "--client", "1", "--out", tmp_path / "one.safetensors"]):
        call = [words[0], backup / "run", *words[1:], "--state-dir", backup / "state"]
        ended = CliRunner().invoke(app, [str(word) for word in call])
        assert ended.exit_code == 0, ended.output
    assert Run(backup / "run").model(client=1, state_dir=backup / "state")


def test_a_node_needs_to_write_there(backup: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be used: .*give a directory that can be written"):
        PersonalState(backup / "state")
