"""One checkout of FedGSP: how its processes are started, and what its `top-server` accepts."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.golden.cases import COMMON, PARTS, Case

GUARD = Path(__file__).with_name("guard")
#: Flags with another name in earlier commits: the first name of these that `top-server --help` has is used.
RENAMED = {
    "profile-option": ("profile-option", "grouping-option"),
    "merge-option": ("merge-option", "grouping-option"),
    "aggregation-option": ("aggregation-option", "grouping-option"),
}

_SCHEMES = "import json; from top_server.schemes import SCHEMES; print(json.dumps(list(SCHEMES)))"


class WrongCheckoutError(Exception):
    """A process would import, or did import, packages of another checkout."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout and the interpreter that plays it."""

    root: Path
    python: Path
    schemes: tuple[str, ...]
    help: str

    @classmethod
    def probe(cls, root: Path, python: Path, folder: Path) -> Checkout:
        """Asks a checkout for its schemes and flags from within `folder`; WrongCheckoutError if it is not imported."""
        # The path of a virtual environment's interpreter is a link, and must not be resolved.
        found = cls(root.resolve(), python.absolute(), (), "")
        schemes = json.loads(found._ask(folder, "-c", _SCHEMES))
        return cls(found.root, found.python, tuple(schemes), found._ask(folder, "-m", "top_server", "--help"))

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment variables of every process that plays in `folder`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDGSP_")}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(GUARD), str(self.root)]),
            "GOLDEN_CHECKOUT": str(self.root),
            "GOLDEN_PROCESSES": str(folder / "processes"),
            "COLUMNS": "200",
            "TERM": "dumb",
        }

    def top_server(self, *flags: str) -> list[str]:
        """The command of a top server."""
        return [str(self.python), "-m", "top_server", *flags]

    def check_processes(self, folder: Path, fewest: int) -> None:
        """Raises WrongCheckoutError unless at least `fewest` processes started in `folder`, all from this checkout."""
        started = folder / "processes"
        lines = started.read_text(encoding="utf-8").splitlines() if started.exists() else []
        for line in lines:
            if not line.startswith("right\t"):
                raise WrongCheckoutError(f"a process imports another checkout than {self.root}: {line}")
        if len(lines) < fewest:
            raise WrongCheckoutError(f"{len(lines)} of {fewest} processes checked which packages they import")

    def described(self) -> dict[str, str]:
        """Commit, versions and machine: written beside the results."""
        code = ["-c", "import sys, torch, numpy; print(sys.version.split()[0], torch.__version__, numpy.__version__)"]
        versions = subprocess.run([self.python, *code], capture_output=True, text=True, check=True).stdout.split()
        return {
            "commit": self._git("describe", "--always", "--abbrev=12", "--dirty=+changes"),
            "subject": self._git("log", "-1", "--format=%s"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            **dict(zip(("python", "torch", "numpy"), versions, strict=True)),
        }

    def _ask(self, folder: Path, *arguments: str) -> str:
        command = [str(self.python), *arguments]
        done = subprocess.run(command, cwd=folder, env=self.environment(folder), capture_output=True, text=True)
        self.check_processes(folder, 1)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", "-C", self.root, *arguments], capture_output=True, text=True)
        return done.stdout.strip()


def flags(case: Case, known: str) -> list[str]:
    """The settings of a case as flags of a checkout whose `top-server --help` printed `known`."""
    found: list[str] = []
    for name, value in {**COMMON, **case.settings}.items():
        found += [_flag(name, known), value]
    for part in PARTS:
        for name, value in case.options(part).items():
            found += [_flag(f"{part}-option", known), f"{name}={value}"]
    return found


def _flag(name: str, known: str) -> str:
    names = RENAMED.get(name, (name,))
    there = (f"--{each}" for each in names if re.search(rf"--{each}(?![\w-])", known))
    return next(there, f"--{name}")
