"""A record that somebody else has made does not decide which code runs in the Python process that reads it."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import fedgsp
from fedgsp.errors import ConfigError, DataError, UserError
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run, extend, resume, sweep
from tests.security.test_private_files import STRANGER, as_root
from tests.support.run_directories import trained, write
from tests.support.traps import set_trap, what_ran
from tests.top_server.resume.test_find import BEGIN, recorded
from top_server.placing import PLACES
from top_server.resume import find as resuming

EVIL = """
from pathlib import Path
from fedgsp_node.tasks.digits import Digits

Path(__file__).with_name("ran").touch()


def make(clients: int = 2) -> Digits:
    return Digits(clients)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that names a task beside its record."""
    models = {"final": (trained(Digits(2), 0), ())}
    path = write(tmp_path / "run", Digits(2), models, task="evil_task:make", task_option={"clients": "2"})
    (path / "evil_task.py").write_text(EVIL)
    return path


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    sys.modules.pop("evil_task", None)


def test_a_task_that_only_the_record_names_is_not_imported(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"task evil_task:make.*; if you trust that code, give Run\(DIRECTORY"):
        Run(run).model()
    with pytest.raises(ConfigError, match="evil_task:make"):
        _ = Run(run).task
    assert not (run / "ran").exists()
    assert "evil_task" not in sys.modules


def test_all_else_of_a_record_is_read_without_its_code(run: Path) -> None:
    found = Run(run)
    assert found.settings.task == "evil_task:make"
    assert found.events
    assert not (run / "ran").exists()


def test_another_task_than_that_of_the_record_is_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"'clinics:Clinics', and the run in .* is one of task 'evil_task:make'"):
        Run(run, "clinics:Clinics").model()
    assert not (run / "ran").exists()


def test_a_task_that_the_caller_gives_is_used(run: Path) -> None:
    assert Run(run, Digits(2)).model()
    assert not (run / "ran").exists()
    assert Run(run, "evil_task:make").model()
    assert (run / "ran").exists()


@pytest.mark.parametrize("task", ["no_such_task", "os", "a/b"])
def test_a_name_that_no_package_has_is_refused(task: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(dump(RunConfig(task=task)))
    with pytest.raises((ConfigError, DataError), match="task"):
        _ = Run(tmp_path).task


@pytest.mark.parametrize(
    ("place", "option", "value"),
    [
        ("srun", "srun", "--task-prolog=evil"),
        ("slurm", "sbatch", "--wrap=evil"),
        ("ray", "address", "ray://evil:1"),
    ],
)
def test_a_record_alone_does_not_choose_what_a_cluster_runs(
    place: str, option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "run").mkdir()
    found = resuming.find(recorded(tmp_path / "run", [BEGIN[0], BEGIN[1] | {"directory": str(home)}]))
    settings = RunConfig(place=place, workers=1, place_option={option: value})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"option {option} of place {place}.*; if you trust that, run: cd "):
        resuming.work_there(found, settings)
    assert Path.cwd() == tmp_path
    monkeypatch.chdir(home)
    resuming.work_there(found, settings)


def test_each_option_of_a_place_that_is_a_text_or_a_path_is_declared_or_harmless() -> None:
    """A new option that can name a command needs a word in the row of its place."""
    harmless = {"partition", "account", "qos", "time", "host"}  # of a flag of its own, or an address to listen at
    for name, place in PLACES.items():
        texts = [one for one in dataclasses.fields(place.options) if re.search("str|Path", str(one.type))]
        free = {one.name for one in texts}
        assert free <= harmless | set(place.runs), name


# --- runs that Python continues

CONTINUED: Mapping[str, Callable[[Path], object]] = {
    "resume": lambda path: resume(path, progress=False),
    "extend": lambda path: extend(path, 9, progress=False),
    "sweep": lambda path: sweep({"run": {}}, out=path.parent, rounds=9, clients=2, progress=False),
}


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that cannot be continued, with files that Python could import."""
    path = set_trap(tmp_path / "run-0")
    (path / "config.toml").write_text(dump(RunConfig(rounds=9, clients=2)))
    recorded(path, BEGIN)
    (path / "state" / "round-0001").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("LOOT", str(tmp_path / "loot"))
    return path


@pytest.mark.e2e
@pytest.mark.parametrize("continues", CONTINUED.values(), ids=CONTINUED)
def test_a_directory_that_is_not_continued_runs_no_code(continues: Callable[[Path], object], trapped: Path) -> None:
    with pytest.raises(UserError, match=f"{trapped}"):
        continues(trapped)
    assert what_ran(trapped.with_name("loot")) == []


@as_root
@pytest.mark.e2e
@pytest.mark.parametrize("continues", CONTINUED.values(), ids=CONTINUED)
def test_the_directory_of_another_user_runs_no_code(continues: Callable[[Path], object], trapped: Path) -> None:
    os.chown(trapped, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        continues(trapped)
    assert what_ran(trapped.with_name("loot")) == []


OF_A_SCRIPT = """
import sys

from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import extend, run


class Mine(Digits):
    def __init__(self) -> None:
        super().__init__(2)


run(Mine, scheme="fedavg", rounds=1, nodes=1, progress=False, run_dir=sys.argv[1])
extend(sys.argv[1], 2, progress=False)
"""


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_a_task_that_is_written_into_a_directory_is_all_that_is_imported_from_there(tmp_path: Path) -> None:
    path, script, loot = set_trap(tmp_path / "run"), tmp_path / "script.py", tmp_path / "loot"
    script.write_text(OF_A_SCRIPT)
    environment = {**os.environ, "LOOT": str(loot), "PYTHONPATH": str(Path(fedgsp.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, script, path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert what_ran(loot) == []
    assert ended.returncode == 0, ended.stderr
    assert len(Run(path).rows) == 2
