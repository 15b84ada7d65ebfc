"""A task that changes the working directory reads its files there, and leaves the caller's as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedgsp_runs import Run
from fedgsp_runs.playing import _made
from tests.support.run_directories import trained, write
from tests.support.user_modules import started_in

MODULE = """
import os
from pathlib import Path

import torch

from tests.support.blobs_task import Blobs

{at_import}


class Words(Blobs):
    def __init__(self) -> None:
        super().__init__()
        {when_made}

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(6, len(Path('words.txt').read_text().split()))
"""
CHANGE = "os.chdir(Path(__file__).parent / 'data')"
WAYS = [{"at_import": CHANGE, "when_made": "pass"}, {"at_import": "", "when_made": CHANGE}]


@pytest.mark.parametrize("way", WAYS, ids=["at its import", "when it is made"])
def test_a_model_is_made_where_the_files_of_its_task_are(way: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("a b c")
    (tmp_path / "reading.py").write_text(MODULE.format(**way))
    with started_in(tmp_path):
        made = _made("reading:Words", {})
        with started_in(tmp_path / "data"):
            weights = trained(made, 1)
            write(tmp_path / "run", made, {"final": (weights, ())}, task="reading:Words")
        of_this_process = Run("run", made)
        assert of_this_process.model()["weight"].shape == (3, 6)
        del sys.modules["reading"]  # as in another process
        for _ in range(2):  # the second one imports nothing
            found = Run("run", "reading:Words")
            assert found.task.num_classes == 3
            assert {*found.model()} == {*found.model()} == {"weight", "bias"}
            assert Path.cwd() == tmp_path
