"""A task may change the working directory: paths still mean what they meant to the user who gave them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedgsp
from fedgsp import ClientData
from fedgsp_node.cli import app
from fedgsp_node.kept.personal_state import HEAD
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run
from fedgsp_runs.playing import _made
from tests.support.kept_state import keep, opened
from tests.support.run_directories import RUN, trained, write


class Leaves(Digits):
    """Goes elsewhere in one of its methods."""

    def __init__(self, where: str, to: Path) -> None:
        super().__init__(3)
        self.where, self.to = where, to
        self._go("init")

    def model(self) -> torch.nn.Module:
        self._go("model")
        return super().model()

    def data(self, client: int) -> ClientData:
        self._go("data")
        return super().data(client)

    def _go(self, where: str) -> None:
        if where == self.where:
            os.chdir(self.to)


NAME, PLACES = f"{__name__}:Leaves", ("init", "model", "data")


def played(where: str, folder: Path) -> dict[str, str]:
    """A run in `run`, whose heads are in `state`; returns the options of its task."""
    task, options = Digits(3), {"where": where, "to": str(folder / "elsewhere")}
    Path(options["to"]).mkdir()
    whole = trained(task, 1)
    head = {spec.name: whole.arrays[spec.name] for spec in whole.tensors if spec.head}
    write(Path("run"), task, {"final": (whole, ())}, task=NAME, task_option=options, scheme="hcct-p")
    keep(opened(Path("state"), RUN), 1, HEAD, head, 3)
    return options


@pytest.mark.parametrize("where", PLACES)
def test_the_commands_after_a_run_find_and_write_their_files(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    played(where, tmp_path)
    common = ["run", "--task", NAME, "--state-dir", "state"]
    result = CliRunner().invoke(app, ["export", *common, "--client", "1", "--out", "new/whole.safetensors"])
    os.chdir(tmp_path)
    assert result.stdout == "new/whole.safetensors: final of round 3\n", result.exception
    Digits(3).model().load_state_dict(load_file("new/whole.safetensors"))
    result = CliRunner().invoke(app, ["evaluate", *common, "--clients", "1", "--json"])
    assert list(json.loads(result.stdout)["clients"]) == ["1"], result.exception


@pytest.mark.parametrize("where", PLACES)
def test_python_stays_where_it_is(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = played(where, tmp_path)
    assert Run("run", NAME).model().keys() == Digits(3).model().state_dict().keys()
    _made(Leaves, options)
    fedgsp.check(Run("run", NAME).task)
    assert Path.cwd() == tmp_path
