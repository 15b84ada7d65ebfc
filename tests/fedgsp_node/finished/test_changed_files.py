"""Files that have changed since they were written, or are gone: nothing is taken in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgsp.errors import ConfigError, DataError
from fedgsp_node.cli import app
from fedgsp_node.kept.personal_state import PERSONAL_MODEL, PersonalState
from fedgsp_node.tasks.digits import Digits
from tests.support.kept_state import keep
from tests.support.power import Disk
from tests.support.run_directories import RUN, trained, write

THREE = {"clients": "3"}


def outcome(*words: str | Path) -> BaseException | None:
    """What a command ends with; None if it succeeds."""
    return CliRunner().invoke(app, [str(word) for word in words]).exception


def change(path: Path) -> None:
    """Changes one byte of the tensors."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(("file", "model"), [("final-group-0001", "final"), ("round-0002", "round-0002")])
def test_a_changed_file_of_a_model_is_refused_by_its_name(file: str, model: str, tmp_path: Path) -> None:
    models = {
        "final-group-0000": (trained(Digits(3), 1), (0, 2)),
        "final-group-0001": (trained(Digits(3), 2), (1,)),
        "round-0002": (trained(Digits(3), 3), (0, 1, 2)),
    }
    run = write(tmp_path / "run", Digits(3), models, scheme="hcct", task_option=THREE)
    change(run / "models" / f"{file}.safetensors")
    out = tmp_path / "x.safetensors"
    for words in (("export", run, "--client", "1", "--out", out), ("evaluate", run)):
        error = outcome(*words, "--model", model)
        assert isinstance(error, DataError)
        assert error.exit_code == 4
        assert error.what.startswith(f"{run / 'models' / file}.safetensors has changed since it was written")
        assert error.remedy == "restore it from a copy of the run directory"
    assert not out.exists()
    assert outcome("evaluate", run, "--clients", "0") is None or model != "final"


def test_empty_settings_are_not_those_of_another_task(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    (run / "config.toml").write_text("")
    error = outcome("evaluate", run, "--clients", "0")
    assert isinstance(error, DataError)
    assert str(error) == f"{run / 'config.toml'} lacks task, task_option; restore the file from a copy"


def test_a_changed_personal_model_is_refused_by_its_name(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, scheme="ditto", task_option=THREE)
    kept = PersonalState(tmp_path / "state")
    kept.open(RUN)
    keep(kept, 1, PERSONAL_MODEL, trained(Digits(3), 2).arrays, 3)
    words = ("evaluate", run, "--clients", "1", "--state-dir", tmp_path / "state")
    assert outcome(*words) is None
    change(tmp_path / "state" / f"{RUN}-client-1.personal-model.safetensors")
    error = outcome(*words)
    assert isinstance(error, DataError)
    assert "client-1.personal-model.safetensors has changed since it was written" in error.what


def test_a_personal_model_that_is_gone_is_named_and_neither_an_older_nor_the_shared_one_is_taken(
    tmp_path: Path,
) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, scheme="ditto", task_option=THREE)
    state = tmp_path / "state"
    kept = PersonalState(state)
    kept.open(RUN)
    for number in (2, 3):
        for client in (0, 1):
            keep(kept, client, PERSONAL_MODEL, trained(Digits(3), number).arrays, number)
    for file in (f"{RUN}-client-0.personal-model.safetensors", f"{RUN}-client-0.personal-model-before.safetensors"):
        (state / file).unlink()
        export = ("export", run, "--client", "0", "--out", tmp_path / "x.safetensors")
        for words in (("evaluate", run, "--clients", "0-1"), export):
            error = outcome(*words, "--state-dir", state)
            assert isinstance(error, ConfigError)
            assert error.what == f"{state} has no personal model of client 0 of run {RUN} until round 3"
            assert error.remedy.startswith("give the --state-dir of the node that hosted the client in this run")
    assert outcome("evaluate", run, "--clients", "1", "--state-dir", state) is None


def test_an_exported_model_is_whole_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    disk, out = Disk(monkeypatch), tmp_path / "out" / "x.safetensors"
    assert outcome("export", run, "--out", out) is None
    before = out.read_bytes()
    disk.cut(out.parent)
    assert out.read_bytes() == before
