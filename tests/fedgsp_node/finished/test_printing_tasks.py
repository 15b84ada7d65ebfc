"""What a task prints goes to stderr, and not into what the commands after a run print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from typer.testing import CliRunner

from fedgsp import ClientData
from fedgsp_node.cli import app
from fedgsp_node.tasks.digits import Digits
from tests.support.run_directories import trained, write


class Prints(Digits):
    """Prints while it is made, and whenever it is used."""

    def __init__(self, clients: int = 3) -> None:
        sys.stdout.write("made\n")
        super().__init__(clients)

    def model(self) -> torch.nn.Module:
        sys.stdout.write("model\n")
        return super().model()

    def data(self, client: int) -> ClientData:
        sys.stdout.write("data\n")
        return super().data(client)


def test_what_a_task_prints_is_no_part_of_the_results(tmp_path: Path) -> None:
    name, out = f"{__name__}:Prints", tmp_path / "whole.safetensors"
    run = str(write(tmp_path / "run", Prints(), {"final": (trained(Prints(), 1), ())}, task=name))
    result = CliRunner().invoke(app, ["evaluate", run, "--task", name, "--json"])
    assert list(json.loads(result.stdout)) == ["clients", "together"]
    assert {"made", "model", "data"} <= {*result.stderr.splitlines()}
    result = CliRunner().invoke(app, ["export", run, "--task", name, "--out", str(out)])
    assert result.stdout == f"{out}: final of round 3\n"
