"""A task of a script may use the modules beside the script, wherever the script is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedgsp
from fedgsp_runs import Run

SCRIPT = """
import sys
{first}
import numpy as np
from {package} import dense

from fedgsp import ClientData, Split, Task
from fedgsp_runs import run


class Two(Task):
    num_classes, num_clients = 2, 2

    def model(self):
        return dense()

    def data(self, client):
        part = Split(np.ones((4, 3), np.float32), np.arange(4) % 2)
        return ClientData(part, part)


run(Two, scheme="fedavg", rounds=1, nodes=1, progress=False, run_dir=sys.argv[1])
"""
LAYERS = "from torch import nn\n\n\ndef dense():\n    return nn.Linear(3, 2)\n"


@pytest.mark.parametrize("package", ["sizes", "spaces.sizes"])
@pytest.mark.parametrize("beside", [True, False])
def test_nodes_find_what_the_script_finds(package: str, beside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "its modules"
    file = folder / f"{package.replace('.', '/')}.py"  # `spaces` has no __init__.py
    file.parent.mkdir(parents=True)
    file.write_text(LAYERS)
    script = (folder if beside else tmp_path) / "script.py"
    script.write_text(SCRIPT.format(package=package, first="" if beside else f"sys.path.insert(0, {str(folder)!r})"))
    elsewhere, recorded = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(fedgsp.__file__).parents[1])}
    told = subprocess.run(
        [sys.executable, str(script), str(recorded)], cwd=elsewhere, env=environment, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert len(Run(recorded).rows) == 1
