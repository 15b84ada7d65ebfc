"""The checkout that FedGSP runs from, if it is not installed from a wheel."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: How long git may take to look at a checkout, in seconds.
_GIT_S = 5.0
#: Git must not lock the checkout: other processes may use it.
_DESCRIBE = ("git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def commit(root: Path = ROOT) -> str:
    """The commit of the checkout, with `-dirty` if files are changed; empty if there is none, or git cannot tell."""
    if not (root / ".git").exists():
        return ""
    try:
        told = subprocess.run(_DESCRIBE, cwd=root, capture_output=True, text=True, check=True, timeout=_GIT_S)
    except (OSError, subprocess.SubprocessError):
        return ""  # git is not installed, or refuses a checkout of another user
    return told.stdout.strip()
