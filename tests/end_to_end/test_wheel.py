"""The project as others install it: an sdist, the wheel made from it, and a run in an environment with that wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fedgsp", "fedgsp_node", "fedgsp_runs", "group_manager", "top_server")
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
FLAGS = ["--growth", "log", "--local-nodes", "4", "--clients", "24", "--rounds", "2", "--beta", "2"]


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command as a user without PYTHONPATH would; returns what it prints."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def pip(*arguments: str | Path, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments, cwd=cwd)


def project_files() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("only git knows which files belong here")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from a copy of the files under version control, so that no leftover of another build gets in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist")
    for name in project_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-c", SDIST, out, cwd=source)
    return next(out.iterdir())


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the sdist alone."""
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", out, sdist, cwd=out)
    return next(out.iterdir())


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Path:
    """A fresh environment with the wheel, which borrows torch and the other libraries from this one."""
    folder = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=tmp_path)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "libraries.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    return folder


def test_the_sdist_holds_what_wheel_and_stubs_are_made_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "README.md", "pyproject.toml", "scripts/protos.py"}
    needed |= {name for name in project_files() if name.startswith((*(f"{p}/" for p in PACKAGES), "protos/"))}
    assert needed - names == set()


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"fedgsp/py.typed", "fedgsp/v1/group_pb2.py", "fedgsp/v1/group_pb2.pyi"} <= names
    assert names == {name for name in project_files() if name.startswith(tuple(f"{p}/" for p in PACKAGES))}


def test_a_run_of_the_installed_wheel_works_in_an_empty_folder(environment: Path, tmp_path: Path) -> None:
    here = tmp_path / "empty"
    here.mkdir()
    imported = run(
        environment / "bin" / "python",
        "-c",
        f"import {', '.join(PACKAGES)}; print(*(package.__file__ for package in ({', '.join(PACKAGES)})))",
        cwd=here,
    ).split()
    assert [Path(file).is_relative_to(environment) for file in imported] == [True] * len(PACKAGES)
    printed = run(environment / "bin" / "top-server", *FLAGS, "--listen", "127.0.0.1:0", cwd=here)
    assert "run finished: 2 rounds" in printed
    (directory,) = (here / "runs").iterdir()
    assert (directory / "models" / "final.safetensors").is_file()
