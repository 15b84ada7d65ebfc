"""Modules of a user, which a node imports from the folder that it is started in."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def started_in(folder: Path) -> Iterator[None]:
    """The body runs in this folder. Afterwards, no module from the folder is imported and none can be imported."""
    before = list(sys.path)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path[:] = before  # `load_task` has added the folder
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
