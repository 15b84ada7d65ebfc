"""What a task prints goes to stderr, and not into what the commands after a run print."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedgsp import ClientData
from fedgsp.lifecycle import python_module
from fedgsp_node.cli import app
from fedgsp_node.tasks.digits import Digits
from tests.support.run_directories import trained, write

ROOT = Path(__file__).resolve().parents[3]


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


class Converts(Digits):
    """What it starts prints, and so does code in C."""

    def data(self, client: int) -> ClientData:
        subprocess.run(["echo", "converted"], check=True)
        os.write(1, b"as bytes\n")
        ctypes.CDLL(None).puts(b"in C")
        return super().data(client)


@pytest.mark.parametrize("command", ["evaluate", "check"])
def test_so_it_is_with_what_its_child_processes_print(command: str, tmp_path: Path) -> None:
    name = f"{__name__}:Converts"
    run = str(write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task=name))
    words = {
        "evaluate": [run],
        "check": ["--top-server", "127.0.0.1:1", "--connect-timeout", "0.1", "--clients", "0-2"],
    }
    ended = subprocess.run(
        [*python_module("fedgsp_node"), command, *words[command], "--task", name, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert len(json.loads(ended.stdout)) >= 2, ended.stderr  # and nothing else
    assert {"converted", "as bytes", "in C"} <= {*ended.stderr.splitlines()}


def test_without_stderr_it_is_dropped(tmp_path: Path) -> None:
    code = "import os\nfrom fedgsp.apart import only_results_on_stdout as only\nwith only(): os.write(1, b'dropped')\n"
    code += "print('result')"
    ended = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code], stdout=subprocess.PIPE, text=True, check=False
    )
    assert ended.stdout == "result\n"
