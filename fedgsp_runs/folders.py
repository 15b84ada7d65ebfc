"""The folders from which this process imports modules, and those from which new processes would."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path


def folders_of(imports: list[str]) -> list[str]:
    """The folders in which only this process finds the modules of these lines, such as those beside a script."""
    tops = dict.fromkeys(line.split()[1].partition(".")[0] for line in imports)
    roots = dict.fromkeys(root_of(top) for top in tops if top in sys.modules)
    return [str(one) for one in only_here(roots)]


def only_here(folders: Iterable[Path | None]) -> list[Path]:
    """Those of the folders in which this process looks for modules, and a new process would not look."""
    mine = {Path(entry).resolve() for entry in sys.path}
    given = [*sysconfig.get_paths().values(), *os.environ.get("PYTHONPATH", "").split(os.pathsep), ""]
    return [one for one in folders if one is not None and one in mine - {Path(entry).resolve() for entry in given}]


def is_installed(module: str) -> bool:
    """Whether a module is one of Python, or of an installed package."""
    root = root_of(module)
    python = Path(sysconfig.get_path("stdlib")).resolve()
    return root is None or root.name in ("site-packages", "dist-packages") or root.is_relative_to(python)


def root_of(module: str) -> Path | None:
    """The folder from which a module's package is imported, if it has a file."""
    top = sys.modules[module.partition(".")[0]]
    return parent_of(getattr(top, "__file__", None), getattr(top, "__path__", None))


def parent_of(file: str | None, paths: Iterable[str] | None) -> Path | None:
    """The folder that has a module's file, or one of the folders of a package without `__init__.py`."""
    if file is None:  # of Python itself, or such a package
        found = list(paths or ())
        return Path(found[0]).resolve().parent if found else None
    path = Path(file).resolve()
    return path.parent.parent if path.name == "__init__.py" else path.parent
