"""The versions of the software of this process, as a person compares them between two machines."""

import platform
import sys
from importlib import metadata

import fedgsp

#: Distributions whose versions matter to two processes that speak with each other.
_OF_THE_WIRE = ("grpcio", "protobuf")


def versions() -> dict[str, str]:
    """Version by name: fedgsp, python and what carries messages; torch too, if this process has imported it."""
    found = {"fedgsp": fedgsp.__version__, "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in _OF_THE_WIRE}
    torch = sys.modules.get("torch")
    return found | ({"torch": str(torch.__version__)} if torch is not None else {})
