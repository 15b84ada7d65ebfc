"""A task of a script may use the modules beside the script, wherever the script is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

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


@pytest.mark.parametrize("task", ["Two", "'two_clients:Two'"])
def test_a_run_of_a_module_beside_the_script_goes_on_from_there(task: str, tmp_path: Path) -> None:
    elsewhere, recorded = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    (tmp_path / "two_clients.py").write_text(OF_A_MODULE)
    (tmp_path / "layers_of_two.py").write_text(LAYERS)
    script, head = (
        tmp_path / "script.py",
        "import sys\nfrom fedgsp_runs import extend, run\nfrom two_clients import Two\n",
    )
    script.write_text(f"{head}{RUN.replace('Two', task)}extend(sys.argv[1], 2, progress=False).model()\n")
    play(script, recorded, elsewhere, rounds=2)


@pytest.mark.parametrize("of_a_module", [True, False])
def test_an_installed_module_does_not_take_the_place_of_one_that_the_script_uses(
    of_a_module: bool, tmp_path: Path
) -> None:
    elsewhere, recorded, installed = tmp_path / "elsewhere", tmp_path / "run", tmp_path / "installed"
    elsewhere.mkdir()
    installed.mkdir()
    (installed / "layers_of_two.py").write_text(LAYERS.replace("Linear(3, 2)", "Linear(3, 2, bias=False)"))
    (tmp_path / "layers_of_two.py").write_text(LAYERS)
    script = tmp_path / "script.py"
    if of_a_module:
        (tmp_path / "two_clients.py").write_text(OF_A_MODULE)
        script.write_text(f"import sys\nfrom fedgsp_runs import run\nfrom two_clients import Two\n{RUN}")
    else:
        script.write_text(SCRIPT.format(package="layers_of_two", first=""))
    play(script, recorded, elsewhere, installed)
    assert load_file(recorded / "models" / "final.safetensors").keys() == {"weight", "bias"}


def play(script: Path, recorded: Path, folder: Path, *installed: Path, rounds: int = 1) -> None:
    """Executes a script in a folder, which is to record a run of so many rounds; `installed` has other modules."""
    paths = [Path(fedgsp.__file__).parents[1], *installed]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    told = subprocess.run(
        [sys.executable, str(script), str(recorded)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert len(Run(recorded).rows) == rounds
