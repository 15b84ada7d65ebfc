from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from fedgsp.processes import lifecycle, run_module


def test_a_module_beside_our_packages_runs_and_one_in_the_working_directory_does_not(tmp_path: Path) -> None:
    ours, here = tmp_path / "ours", tmp_path / "here"
    (ours / "fedgsp" / "processes").mkdir(parents=True)
    here.mkdir()
    copy = shutil.copy(run_module.__file__, ours / "fedgsp" / "processes")
    (ours / "program.py").write_text("import sys\nprint(__name__, sys.argv[1:], __file__)\n")
    (here / "program.py").write_text("raise SystemExit('the wrong module')\n")
    command = lifecycle.python_module("program")
    command[command.index(run_module.__file__)] = str(copy)
    ended = subprocess.run([*command, "--name", "m0"], cwd=here, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout == f"__main__ ['--name', 'm0'] {ours / 'program.py'}\n"
