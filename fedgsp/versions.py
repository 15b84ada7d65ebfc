"""The versions of the software of this process, as a person compares them between two machines."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import fedgsp

#: Distributions whose versions matter to two processes that speak with each other.
_OF_THE_WIRE = ("grpcio", "protobuf")
#: How long git may take to look at a checkout, in seconds.
_GIT_S = 5.0


def versions() -> dict[str, str]:
    """Version by name: fedgsp, python and what carries messages; torch too, if this process has imported it."""
    found = {"fedgsp": fedgsp.__version__, "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in _OF_THE_WIRE}
    torch = sys.modules.get("torch")
    return found | ({"torch": str(torch.__version__)} if torch is not None else {})


def commit() -> str:
    """The commit of the checkout that FedGSP runs from, with `-dirty` if files are changed; empty if there is none."""
    root = Path(fedgsp.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_S)
    except (OSError, subprocess.SubprocessError):
        return ""  # git is not installed, or refuses a checkout of another user
    return told.stdout.strip()
