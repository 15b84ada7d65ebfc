"""What is installed was checked: everything but torch and the project itself is in a lock, with its hashes."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
#: torch has several builds for each platform; the project is not downloaded.
NOT_LOCKED = {"torch", "fedgsp"}
PINNED = re.compile(r"([a-z0-9-]+)==([\w.!+-]+)((?: --hash=sha256:[0-9a-f]{64})+)")


def lines(lock: str) -> list[str]:
    """The requirements of a lock, each in one line."""
    return re.sub(r" \\\n +", " ", (ROOT / lock).read_text(encoding="utf-8")).splitlines()


def locked(*locks: str) -> dict[str, str]:
    found = {}
    for lock in locks:
        for line in lines(lock):
            pinned = PINNED.fullmatch(line)
            assert pinned is not None, line
            found[pinned[1]] = pinned[2]
    return found


def wanted(*extras: str) -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    return (one for one in map(Requirement, texts) if one.name not in NOT_LOCKED)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_exact_versions_with_hashes_and_nothing_else(lock: str) -> None:
    """No address, no option of pip, no version without a hash."""
    assert len(locked(lock)) == len(lines(lock)) > 20


@pytest.mark.parametrize(("locks", "extras"), [(LOCKS[:1], ()), (LOCKS, ("plots", "dev"))], ids=["run", "develop"])
def test_the_locks_cover_what_the_project_asks_for(locks: tuple[str, ...], extras: tuple[str, ...]) -> None:
    found = locked(*locks)
    lacking = [str(one) for one in wanted(*extras) if not one.specifier.contains(found.get(one.name, "0"))]
    assert lacking == []


@pytest.mark.parametrize("locks", [LOCKS[:1], LOCKS], ids=["run", "develop"])
def test_the_locks_cover_what_these_need_in_turn_and_what_torch_needs(locks: tuple[str, ...]) -> None:
    """Otherwise pip would refuse the lock or, for torch, take a file that nobody checked."""
    found = locked(*locks)
    lacking = []
    for name in (*found, "torch"):
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # a tool that this environment does without
            continue
        for one in map(Requirement, needed):
            here = one.marker is None or one.marker.evaluate({"extra": ""})
            covered = one.specifier.contains(found.get(canonicalize_name(one.name), "0"), prereleases=True)
            if (
                here and not covered and not re.match("nvidia|cuda|triton", one.name)
            ):  # these belong to a build of torch
                lacking.append(f"{name} needs {one}")
    assert lacking == []


@pytest.mark.parametrize("file", ["Makefile", "docs/deployment.md", "docs/index.md"])
def test_every_way_to_install_checks_hashes_and_downloads_nothing_else(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    installs = re.findall(r"(?:pip install|\$\(PIP\)) (?!--quiet)([^\n`]+)", text)
    assert len(installs) >= 3
    for arguments in installs:
        checked = arguments.startswith("--require-hashes --only-binary :all: -r requirements")
        assert checked or arguments == "torch==2.13.0" or arguments.startswith("--no-deps --no-build-isolation"), (
            arguments
        )
