"""Where processes find a task: a class of a notebook or a script is written as a module, because nodes import it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsp.errors import TaskError
from fedgsp.files import put
from fedgsp.tasks import FOLDER_VARIABLE, MODULES_VARIABLE
from fedgsp_runs.folders import only_here, parent_of, root_of
from fedgsp_runs.scripts import MAIN
from fedgsp_runs.writing import module_of


@dataclass(frozen=True)
class Source:
    """Where the processes of a run find its task."""

    #: The name of the task for `--task`.
    name: str
    #: A folder that must be on the import path, if any.
    folder: Path | None
    #: The text of the module, if it is to be written into that folder.
    text: str = ""

    @property
    def _file(self) -> Path | None:
        """The file of the module, if it is written."""
        return self.folder / f"{self.name.partition(':')[0]}.py" if self.folder is not None and self.text else None

    def write(self) -> None:
        """Writes the module, if there is one to write."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            put(self._file, self.text.encode())

    def remove(self) -> None:
        """Removes what `write` has written."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def source_of(task: str | Callable[..., Any], folder: Path) -> Source:
    """Where processes find a task: a class of a module there, one of a notebook or a script in a module in `folder`.

    A text is the name of a task. Raises TaskError if processes cannot find it.
    """
    if isinstance(task, str):
        return Source(task, _folder_of(task))
    name = getattr(task, "__qualname__", "")
    if not callable(task) or "." in name or not name.isidentifier():
        raise TaskError(f"the task {task!r} is no class of a module", "define it at the top level of a module or cell")
    if task.__module__ != MAIN:
        return Source(f"{task.__module__}:{name}", root_of(task.__module__))
    text = module_of(task)
    module = f"task_{name.lower()}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return Source(f"{module}:{name}", folder, text)


def place_of(task: str, directory: Path) -> Path:
    """Where nodes find the task that a run directory names: there, or where this process would import it from."""
    top, own = _top_of(task), directory.resolve()
    there = (own / f"{top}.py").is_file() or (own / top / "__init__.py").is_file()
    return own if there else _folder_of(task) or own


def _folder_of(task: str) -> Path | None:
    """The folder in which only this process finds the module of a task's name, such as that of a script."""
    if ":" not in task or not _top_of(task).isidentifier():
        return None
    with contextlib.suppress(ValueError):  # the module is __main__
        spec = importlib.util.find_spec(_top_of(task))
        if spec is not None:
            root = parent_of(spec.origin if spec.has_location else None, spec.submodule_search_locations)
            return next(iter(only_here([root])), None)
    return None


def _top_of(task: str) -> str:
    return task.partition(":")[0].partition(".")[0]


def found_by_nodes(folder: Path | None, directory: Path) -> dict[str, str]:
    """The environment variables that tell nodes where they find their task: in a folder, or in the run directory."""
    place, written = folder and folder.resolve(), directory.resolve()
    return {
        MODULES_VARIABLE: str(place) if place is not None and place != written else "",
        FOLDER_VARIABLE: str(place) if place == written else "",
    }
