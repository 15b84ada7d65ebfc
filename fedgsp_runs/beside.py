"""Refuses a task for which nodes would import other modules than this process did.

This process may look first into the folder of its script, and into those that it has put into `sys.path`. Nodes look
there last, or not at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fedgsp import run_module
from fedgsp.commands import python_path
from fedgsp.errors import RunError, not_started

_TELL_PATH = "import json, sys; print(json.dumps(sys.path))"


def check_modules(task: str, text: str, folder: Path | None) -> None:
    """Raises TaskError if nodes find another module than this process, for one that it found and they look for last.

    These are the modules that it has imported, and those that their code, or the `text` of the task's module, may
    import later. `task` is the name of the task, and `folder` where nodes look for it.
    """
    from fedgsp_node.tasks.beside import check_found, imports_of, modules_beside

    path = _path_of_nodes()
    theirs = {Path(entry).resolve() for entry in path}
    only_here = [Path(os.path.abspath(entry)) for entry in sys.path if Path(entry).resolve() not in theirs]
    beside = modules_beside([*_imported_from(only_here), *imports_of(text)], only_here)
    taken = {name: file for name, file in beside.items() if _is_taken(name, file)}
    last = [str(one.resolve()) for one in (folder, Path()) if one is not None]
    check_found(f"task {task!r}", taken, [*path, *last])


def _path_of_nodes() -> list[str]:
    """The import path with which processes of FedGSP start, see `fedgsp.run_module`."""
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""))}
    command = [sys.executable, "-P", "-c", _TELL_PATH]
    try:
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise not_started(sys.executable, error) from None
    if ended.returncode:
        raise RunError(f"{sys.executable} ended with exit code {ended.returncode}: {ended.stderr[-200:]}", "mend that")
    path: list[str] = json.loads(ended.stdout.splitlines()[-1])
    root = str(Path(run_module.__file__).resolve().parents[1])
    return path if root in path else [root, *path]


def _imported_from(folders: Sequence[Path]) -> list[str]:
    """The modules of this process whose files are in the folders."""
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    begins = tuple(f"{folder}{os.sep}" for folder in folders)
    return [name for name, file in files.items() if isinstance(file, str) and os.path.abspath(file).startswith(begins)]


def _is_taken(name: str, file: Path) -> bool:
    """Whether this process takes a module from that file, or from a compiled one beside it."""
    from fedgsp_node.tasks.beside import origin_of

    origin = getattr(sys.modules[name], "__file__", None) if name in sys.modules else origin_of(name, sys.path)
    return origin is not None and Path(origin).resolve().parent == file.resolve().parent
