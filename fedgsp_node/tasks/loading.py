"""Loads a task by its name, with options given as text."""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedgsp.errors import TaskError, UserError
from fedgsp.options import suggestion
from fedgsp.task import Task
from fedgsp.tasks import TASKS
from fedgsp_node.tasks.options import parse_options, shared_options
from fedgsp_node.users_code import require


def load_task(name: str, options: Mapping[str, str]) -> Task:
    """The task called `name`: a built-in task, or `package.module:factory` in the import path or current directory.

    Raises TaskError if the task cannot be found, built or used, and every UserError that the task raises.
    """
    try:
        return _load(name, options)
    except TaskError as error:
        package = TASKS.packages().get(name)
        if package is None:
            raise
        raise TaskError(f"{error.what}; this task is of package {package}", error.remedy) from error


def _load(name: str, options: Mapping[str, str]) -> Task:
    module, factory = _factory(name)
    arguments = parse_options(name, factory, options)
    task = _guarded(f"task {name!r} could not be built", module, lambda: factory(**arguments))
    if not isinstance(task, Task):
        raise TaskError(
            f"task {name!r}: {getattr(factory, '__name__', name)} returned {_described(task)}, not a fedgsp.Task",
            "return an instance of a subclass of fedgsp.Task",
        )
    for number in ("num_classes", "num_clients"):
        _check_count(name, module, task, number)
    for attribute in ("head", "local_options"):
        found = getattr(task, attribute)
        if not isinstance(found, tuple | list) or not all(isinstance(text, str) for text in found):
            remedy = f"write {attribute} = ({found!r},)" if isinstance(found, str) else f"write {attribute} = ('...',)"
            raise TaskError(f"task {name!r}: {attribute} is {found!r}, not a tuple of strings", remedy)
    return task


def options_to_share(name: str, options: Mapping[str, str], task: Task) -> dict[str, str]:
    """The options of a loaded task that must be equal on all nodes of a run, with defaults."""
    _, factory = _factory(name)
    return shared_options(name, factory, options, task.local_options)


def source_digest(task: Task) -> bytes:
    """SHA-256 of the file that defines a task's class, to notice different versions; empty without a source file."""
    path = str(getattr(sys.modules.get(type(task).__module__), "__file__", None) or "")
    if not path.endswith(".py"):  # compiled code differs between machines
        return b""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:  # for example because it is in an archive
        return b""


def _factory(name: str) -> tuple[ModuleType, Callable[..., object]]:
    if ":" in name:
        code = name
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
    elif name in TASKS:
        code = TASKS[name].code
    else:
        remedy = suggestion(name, sorted(TASKS), "the tasks are")
        raise TaskError(f"there is no task {name!r}", f"{remedy}; write your own task as package.module:factory")
    module_name, _, attribute = code.partition(":")
    module = _import(name, module_name)
    return module, _attribute(name, module, attribute)


def _import(name: str, module_name: str) -> ModuleType:
    require(
        not module_name.endswith(".py") and all(part.isidentifier() for part in module_name.split(".")),
        f"task {name!r}: {module_name!r} is not the name of a module",
        "write package.module:factory, with dots instead of slashes and without .py",
    )
    try:
        return importlib.import_module(module_name)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise TaskError(
                f"task {name!r}: {module_name} needs the module {missing!r}, which is not installed"
                f" ({_location(error, None)})",
                f"install this module for {sys.executable}",
            ) from error
        raise TaskError(
            f"task {name!r}: there is no module {missing!r}",
            f"check the spelling, or start this program in the folder of the module (now: {Path.cwd()})",
        ) from error
    # A module that was written as a script may call sys.exit.
    except (Exception, SystemExit) as error:
        raise _raised(f"task {name!r}: {module_name} cannot be imported", error, None) from error


def _attribute(name: str, module: ModuleType, attribute: str) -> Callable[..., object]:
    factory: Callable[..., object] | None = getattr(module, attribute, None)
    if callable(factory):
        return factory
    own = sorted(
        key
        for key, value in vars(module).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )
    state = f"has no {attribute!r}" if factory is None else f"has {attribute!r}, but it is not a class or function"
    raise TaskError(f"task {name!r}: {module.__name__} {state}", suggestion(attribute, own, "it defines"))


def _check_count(name: str, module: ModuleType, task: Task, number: str) -> None:
    missing = object()
    value = _guarded(f"task {name!r}: {number} cannot be read", module, lambda: getattr(task, number, missing))
    require(
        value is not missing,
        f"task {name!r} has no {number}",
        f"set {number} to a positive int in {type(task).__name__}",
    )
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TaskError(f"task {name!r}: {number} is {_described(value)}", f"set {number} to a positive int")


def _guarded(what: str, module: ModuleType, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(what, error, module) from error


def _raised(what: str, error: BaseException, module: ModuleType | None) -> TaskError:
    return TaskError(
        f"{what}: {type(error).__name__}: {error} ({_location(error, module)})",
        "fix that line, or change the task options",
    )


def _location(error: BaseException, module: ModuleType | None) -> str:
    """file:line of the innermost frame in `module`, else in any file except this one and the import system's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    own = module and module.__file__
    inside = [frame for frame in frames if frame.filename == own] or frames
    if inside:
        return f"{inside[-1].filename}:{inside[-1].lineno}"
    return str(own or "no file")


def _described(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}" if value is not None else "None"
