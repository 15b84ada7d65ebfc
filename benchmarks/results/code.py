"""With which code and on what kind of machine a run was played."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedgsp.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
#: What a run executes. A change of anything else, such as a page or a test, changes no run.
EXECUTED = (
    *("fedgsp", "fedgsp_node", "group_manager", "top_server", "examples"),
    *("benchmarks/centralised.py", "requirements.lock"),
)


@dataclass(frozen=True, slots=True)
class Code:
    """The last commit that changed what a run executes, and whether nothing was changed since."""

    commit: str
    clean: bool
    version: str


def code_here(root: Path = ROOT, may_be_dirty: bool = False, began: datetime | None = None) -> Code:
    """The code in a checkout; ConfigError if it is changed but not committed, or newer than the run.

    `began` is when the run began. With `may_be_dirty`, changed code is told by `clean` and not refused.
    """
    changed = _git(root, "status", "--porcelain", "--", *_present(root)).splitlines()
    if changed and not may_be_dirty:
        raise ConfigError(
            f"the code is changed but not committed: {changed[0][3:]}", "commit it and run again, or give --dirty"
        )
    commit, made = _git(root, "log", "-1", "--format=%H %cI", "--", *_present(root)).split()
    if began is not None and datetime.fromisoformat(made) > began:
        raise ConfigError(
            f"the run began before commit {commit[:7]} was made, so it ran other code",
            "run again, or check out the commit of the run",
        )
    return Code(commit, not changed, importlib.metadata.version("fedgsp"))


def machine_here(device: str = "cpu") -> dict[str, str]:
    """What the bits of a model depend on beside the code: versions, and the kind of machine.

    `device` is where the run's nodes trained, written as in `--device`. The GPU is named only if they had one.
    """
    import torch

    here = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }
    if device != "cpu" and torch.cuda.is_available():
        here["gpu"] = torch.cuda.get_device_name(0)
    return here


def _present(root: Path) -> list[str]:
    return [name for name in EXECUTED if (root / name).exists()]


def _git(root: Path, *words: str) -> str:
    try:
        ended = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise ConfigError(
            f"the commit of {root.name} is not known: {said.strip()}", "work in a clone of the repository"
        ) from None
    return ended.stdout.strip("\n")
