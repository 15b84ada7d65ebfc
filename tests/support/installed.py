"""A package of outside parts, installed into a folder as pip would do it from its wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent / "outside_parts"
_BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"


def install(folder: Path, package: Path = PACKAGE) -> Path:
    """Builds the wheel of a package and unpacks it; returns the folder, which goes into PYTHONPATH."""
    source, wheels, target = folder / "source", folder / "wheels", folder / "installed"
    shutil.copytree(package, source)
    wheels.mkdir()
    built = subprocess.run(
        [sys.executable, "-c", _BUILD, wheels], cwd=source, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target
