"""Every Python process of a run imports this module first, and ends if it would import another checkout's packages.

`benchmarks.golden.checkout` puts this folder on PYTHONPATH and sets the two variables. Each process adds a line to the
file of processes, so that the caller sees that no process started without this check.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("fedgsp", "fedgsp_node", "group_manager", "top_server")


def wrong_packages(checkout: Path) -> list[str]:
    """The files of packages that this process would import from elsewhere than `checkout`."""
    specs = [importlib.util.find_spec(name) for name in PACKAGES]
    files = [spec.origin if spec is not None and spec.origin else "nothing" for spec in specs]
    return [file for file in files if not Path(file).is_relative_to(checkout)]


if "GOLDEN_CHECKOUT" in os.environ:
    _wrong = wrong_packages(Path(os.environ["GOLDEN_CHECKOUT"]))
    with Path(os.environ["GOLDEN_PROCESSES"]).open("a", encoding="utf-8") as _file:
        _file.write(f"{'wrong: ' + ', '.join(_wrong) if _wrong else 'right'}\t{' '.join(sys.orig_argv)}\n")
    if _wrong:
        # Python ignores most errors of a sitecustomize module, so this process is ended directly.
        os._exit(70)
