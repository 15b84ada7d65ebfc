"""A task of a script may use the modules beside the script, wherever the script is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedgsp
from fedgsp_runs import Run

TASK = """
import numpy as np
from {package} import dense

from fedgsp import ClientData, Split, Task


class Two(Task):
    num_classes, num_clients = 2, 2

    def model(self):
        return dense()

    def data(self, client):
        part = Split(np.ones((4, 3), np.float32), np.arange(4) % 2)
        return ClientData(part, part)
"""
RUN = 'run(Two, scheme="fedavg", rounds=1, nodes=1, progress=False, run_dir=sys.argv[1])\n'
SCRIPT = f"import sys\n{{first}}\nfrom fedgsp_runs import run\n{TASK}\n\n{RUN}"
OF_A_MODULE = TASK.format(package="layers_of_two")
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
    play(script, recorded, elsewhere)


def test_nodes_find_a_class_of_a_module_beside_the_script(tmp_path: Path) -> None:
    elsewhere, recorded = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    (tmp_path / "two_clients.py").write_text(OF_A_MODULE)
    (tmp_path / "layers_of_two.py").write_text(LAYERS)
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nfrom fedgsp_runs import run\nfrom two_clients import Two\n{RUN}")
    play(script, recorded, elsewhere)


def executed(script: Path, recorded: Path, folder: Path, *further: Path) -> subprocess.CompletedProcess[str]:
    """How a script ended that was executed in a folder; `further` folders are on the import path of all processes."""
    path = os.pathsep.join(map(str, (Path(fedgsp.__file__).parents[1], *further)))
    command = [sys.executable, str(script), str(recorded)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def play(script: Path, recorded: Path, folder: Path, *further: Path) -> None:
    """Executes a script as `executed` does, which is to record a run of one round."""
    told = executed(script, recorded, folder, *further)
    assert told.returncode == 0, told.stderr
    assert len(Run(recorded).rows) == 1


@pytest.mark.parametrize("beside", [True, False])
def test_a_module_for_which_nodes_would_find_another_is_refused(beside: bool, tmp_path: Path) -> None:
    """The class, which uses it, is in a module beside the script, or in the script."""
    folder, installed, recorded = (tmp_path / name for name in ("folder", "installed", "run"))
    for one in (folder, installed):
        one.mkdir()
        (one / "layers_of_two.py").write_text(LAYERS)
    (folder / "two_clients.py").write_text(OF_A_MODULE)
    told = "from two_clients import Two" if beside else OF_A_MODULE
    (folder / "script.py").write_text(f"import sys\nfrom fedgsp_runs import run\n{told}\n{RUN}")
    ended = executed(folder / "script.py", recorded, tmp_path, installed)
    other = installed / "layers_of_two.py"
    assert f"'layers_of_two' of the folder {folder} has the name of another module ({other})" in ended.stderr
    assert not recorded.exists()
