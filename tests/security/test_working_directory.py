"""The folder in which a program is started may hold anything: only the user's task is imported from there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedgsp.commands import python_path
from fedgsp.errors import TaskError
from fedgsp.tasks import FOLDER_VARIABLE
from fedgsp_node.tasks import load_task
from tests.support.traps import HOOKS, set_trap, what_ran
from tests.support.user_modules import started_in

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--rounds", "1", "--beta", "1", "--local-nodes", "1", "--clients", "2", "--listen", "127.0.0.1:0"]
NOBODY = ["--listen", "127.0.0.1:0", "--join-timeout", "1"]


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A working directory that somebody else prepared."""
    return set_trap(tmp_path / "trap")


def loot(
    folder: Path, command: Sequence[str | Path], python_path: str
) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """What of the trap was run by a command that is started in it, and how the command ended."""
    loot = folder.parent / "loot"
    env = {**os.environ, "LOOT": str(loot), "PYTHONPATH": python_path}
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=40, check=False)
    return what_ran(loot), ended


@pytest.mark.e2e
def test_a_run_with_a_task_of_the_user_imports_nothing_else_from_there(trap: Path) -> None:
    command = Path(sys.executable).with_name("top-server")
    if not command.exists():
        pytest.skip("FedGSP is not installed here")
    (trap / "mine.py").write_text("from helper import Digits\nclass Mine(Digits): pass\n")
    (trap / "helper.py").write_text("import queue, csv\nfrom fedgsp_node.tasks.digits import Digits\n")
    flags = [*QUICK, "--task", "mine:Mine", "--task-option", "clients=2"]
    stolen, ended = loot(trap, [command, *flags], str(ROOT))
    assert stolen == []
    assert (ended.returncode, "run finished" in ended.stdout) == (0, True), ended.stderr


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments", [["top_server", *NOBODY], ["fedgsp_node", "start", "--top-server", "127.0.0.1:x"]]
)
def test_python_m_takes_libraries_from_where_they_are_installed(trap: Path, arguments: list[str]) -> None:
    """The package that -m names is found by Python alone, before any line of ours."""
    for path in (trap / arguments[0]).iterdir():
        path.unlink()
    (trap / arguments[0]).rmdir()
    stolen, ended = loot(trap, [sys.executable, "-m", *arguments], str(ROOT))
    assert stolen == []
    assert ended.returncode in (2, 6), ended.stderr


@pytest.mark.e2e
def test_children_do_not_inherit_an_empty_element_of_the_python_path(trap: Path) -> None:
    command = [sys.executable, "-P", "-c", "from top_server.cli import main; main()", *NOBODY]
    for path in [*trap.glob("*.py"), *trap.glob("*/*.py")]:  # what the user's own interpreter would import
        if path.stem not in HOOKS and path.parent.name != "group_manager":
            path.unlink()
    stolen, ended = loot(trap, command, f"{ROOT}:")
    assert ended.returncode == 6, ended.stderr
    assert stolen
    assert [line for line in stolen if "run_module" in line or "group_manager" in line.partition(" in ")[0]] == []


def test_a_python_path_for_children_names_the_same_folders_wherever_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert python_path(":examples:/opt/tasks::.") == f"{tmp_path / 'examples'}:/opt/tasks:{tmp_path}"
    assert python_path(":") == ""


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", ["blake3", "queue", "json"])
def test_a_task_with_the_name_of_another_module_is_refused_with_the_remedy(
    tmp_path: Path, name: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the working directory, and in the folder that a run from Python names."""
    folder, here = tmp_path / "folder", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / f"{name}.py").write_text("raise AssertionError\n")
    if named:
        monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    told = f"{name!r} of the folder {folder} has the name of another"
    with started_in(here if named else folder), pytest.raises(TaskError, match=told):
        load_task(f"{name}:Task", {})


def test_a_package_that_is_planted_beside_a_task_adds_no_part(tmp_path: Path) -> None:
    planted = tmp_path / "evil-1.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (planted / "entry_points.txt").write_text("[fedgsp.tasks]\nevil = evil:Task\n[fedgsp.trainings]\nevil = evil:T\n")
    (tmp_path / "mine.py").write_text(
        "def make():\n    from fedgsp.tasks import TASKS\n    raise ValueError(list(TASKS))\n"
    )
    with started_in(tmp_path), pytest.raises(TaskError) as caught:
        load_task("mine:make", {})
    assert "digits" in caught.value.what
    assert "evil" not in caught.value.what
