"""What a task prints goes to stderr, and not into what the commands after a run print."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedgsp import ClientData
from fedgsp.processes.lifecycle import python_module
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


def words_of(command: str, run: str) -> list[str]:
    check = ["--top-server", "127.0.0.1:1", "--connect-timeout", "0.1", "--clients", "0-2"]
    return {"evaluate": [run], "check": check}[command]


@pytest.mark.parametrize("command", ["evaluate", "check"])
def test_so_it_is_with_what_its_child_processes_print(command: str, tmp_path: Path) -> None:
    name = f"{__name__}:Converts"
    run = str(write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task=name))
    ended = subprocess.run(
        [*python_module("fedgsp_node"), command, *words_of(command, run), "--task", name, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert len(json.loads(ended.stdout)) >= 2, ended.stderr  # and nothing else
    assert {"converted", "as bytes", "in C"} <= {*ended.stderr.splitlines()}


#: Set when what goes on has printed for the first time.
BEGUN = threading.Event()


class GoesOn(Digits):
    """A thread of it prints on, as data() does that outlasts --data-timeout; so does what it starts."""

    def data(self, client: int) -> ClientData:
        if not BEGUN.is_set():
            threading.Thread(target=_print_on).start()
            BEGUN.wait()
        return super().data(client)


def _print_on() -> None:
    """Prints until the result is there, and once more, in all ways."""
    out = Path(os.environ["RESULT"])
    while True:
        had = out.stat().st_size > 0
        print("printed", flush=True)  # noqa: T201
        print("by another stream", file=sys.__stdout__)
        subprocess.run(["echo", "converted"], check=True)
        BEGUN.set()
        if had:
            return


@pytest.mark.parametrize("command", ["evaluate", "check"])
def test_nor_does_it_come_behind_the_results(command: str, tmp_path: Path) -> None:
    name, out, errors = f"{__name__}:GoesOn", tmp_path / "out", tmp_path / "errors"
    run = str(write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task=name))
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        subprocess.run(
            [*python_module("fedgsp_node"), command, *words_of(command, run), "--task", name, "--json"],
            stdout=stdout,
            stderr=stderr,
            check=False,
            timeout=100,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", "RESULT": str(out)},
        )
    assert len(json.loads(out.read_text())) >= 2, errors.read_text()  # and nothing else
    assert {"printed", "by another stream", "converted"} <= {*errors.read_text().splitlines()}
