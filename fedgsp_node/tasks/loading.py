"""Loads a task by its name, with options given as text."""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from importlib.abc import InspectLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from fedgsp.errors import TaskError, UserError
from fedgsp.options import shortened, suggestion, truth
from fedgsp.require import require
from fedgsp.task import Task
from fedgsp.tasks import FOLDER_VARIABLE, MODULES_VARIABLE, TASKS
from fedgsp_node.remedies import text_of
from fedgsp_node.seeding import seeded_for_task
from fedgsp_node.tasks.attributes import check_attributes, described

#: Type -> the function that converts a text, and what an error says should be given.
_PLAIN: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (truth, "true or false"),
    float: (float, "a number"),
    int: (int, "a whole number"),
    str: (str, "text"),
    Path: (lambda text: Path(text).expanduser(), "a path"),
    typing.Any: (str, "text"),
}
_ABSENT = object()
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_task(name: str, options: Mapping[str, str]) -> Task:
    """The task called `name`: a built-in task, or `package.module:factory` in the import path or working directory.

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
    with seeded_for_task():  # a module may draw when it is imported
        return build_task(name, *factory_of(name), options)


def build_task(name: str, module: ModuleType, factory: Callable[..., object], options: Mapping[str, str]) -> Task:
    """The task that a factory of a module makes, called `name` in errors. Raises what `load_task` raises."""
    arguments = parse_options(name, factory, options)
    with seeded_for_task():
        task = _guarded(f"task {name!r} could not be built", module, lambda: factory(**arguments))
    if not isinstance(task, Task):
        raise TaskError(
            f"task {name!r}: {getattr(factory, '__name__', name)} returned {described(task)}, not a fedgsp.Task",
            "return an instance of a subclass of fedgsp.Task",
        )

    check_task(f"task {name!r}", task, module)
    return task


def check_task(what: str, task: Task, module: ModuleType) -> None:
    """Raises TaskError if an attribute of the task cannot be used; `what` is what the task is called in errors.

    `module` has the task's class.
    """

    def read(attribute: str, otherwise: Any) -> Any:
        return _guarded(f"{what}: {attribute} cannot be read", module, lambda: _value_of(task, attribute, otherwise))

    check_attributes(what, task, read)


def _value_of(task: Task, attribute: str, otherwise: Any) -> Any:
    """The value of an attribute; `otherwise` if the task has none. It has one that raises AttributeError itself."""
    try:
        return getattr(task, attribute)
    except AttributeError:
        if inspect.getattr_static(task, attribute, _ABSENT) is not _ABSENT:
            raise
        return otherwise


def options_to_share(name: str, options: Mapping[str, str], task: Task) -> dict[str, str]:
    """The options of a loaded task that must be equal on all nodes of a run, as text, with defaults.

    Paths and the task's `local_options` may differ between nodes, and are left out. Raises what `load_task` raises.
    """
    _, factory = factory_of(name)
    parameters = inspect.signature(factory).parameters
    defaults = {key: value.default for key, value in parameters.items() if value.kind in _BY_KEYWORD}
    # The annotation decides what is a path, because the value of a path may be None or a string.
    paths = {key for key, parameter in parameters.items() if "Path" in str(parameter.annotation)}
    return {
        key: shortened(str(value))
        for key, value in (defaults | parse_options(name, factory, options)).items()
        if key not in (*task.local_options, *paths) and isinstance(value, bool | int | float | str | None)
    }


def source_digest(task: Task) -> bytes:
    """SHA-256 of the file that defines a task's class, to notice different versions; empty without a source file."""
    path = str(getattr(sys.modules.get(type(task).__module__), "__file__", None) or "")
    if not path.endswith(".py"):  # compiled code differs between machines
        return b""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:  # for example because it is in an archive
        return b""


def factory_of(name: str) -> tuple[ModuleType, Callable[..., object]]:
    """The module and the factory that the name of a task stands for. Raises what `load_task` raises."""
    if ":" in name:
        code = name
        _look_in_folders(name)
    elif name in TASKS:
        code = TASKS[name].code
    else:
        raise TaskError(
            f"there is no task {name!r}",
            f"{suggestion(name, sorted(TASKS), 'the tasks are')}; write your own task as package.module:factory",
        )
    module_name, _, attribute = code.partition(":")
    module = _import(name, module_name)
    return module, _attribute(name, module, attribute)


def _look_in_folders(name: str) -> None:
    """Lets modules be imported from the folder that a run from Python names, and from the working directory.

    The folder of a class's module comes before all others, as in the process that called `run`: otherwise an installed
    module could take the place of one that its script has used. A run directory and the working directory come last:
    their files must not replace any module. Raises TaskError if the task's module is in such a folder, and another one
    would be imported for it.
    """
    TASKS.packages()  # read before, so that the folders add no part
    top = name.partition(":")[0].partition(".")[0]
    first, last = os.environ.get(MODULES_VARIABLE), os.environ.get(FOLDER_VARIABLE)
    if first and first not in sys.path:
        sys.path.insert(0, first)
    folders = list(filter(None, (first, last, str(Path.cwd()))))
    sys.path += [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    for folder in folders:
        _check_found(name, top, Path(folder))


def _check_found(name: str, top: str, folder: Path) -> None:
    """Raises TaskError if the module `top` is in a folder, and another one of that name would be imported."""
    if not ((folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()):
        return
    spec = importlib.util.find_spec(top)
    origin = (spec.origin if spec is not None else None) or "an installed module"
    if folder.resolve() not in Path(origin).resolve().parents:
        raise TaskError(
            f"task {name!r}: the module {top!r} of the folder {folder} has the name of another module ({origin})",
            "rename the file, or the folder",
        )


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
    factory: object = module
    for part in attribute.split("."):  # a class may stand in another one, or have methods that make a task
        factory = getattr(factory, part, None)
    if callable(factory):
        return factory
    own = sorted(
        key
        for key, value in vars(module).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )
    place = _place_below(module, attribute.partition(".")[0])
    remedy = f"give {place}:{attribute}" if place else suggestion(attribute, own, "it defines")
    state = f"has no {attribute!r}" if factory is None else f"has {attribute!r}, but it is not a class or function"
    raise TaskError(f"task {name!r}: {module.__name__} {state}", remedy)


def _place_below(package: ModuleType, name: str) -> str | None:
    """The module of a package that defines a class or function, by its text: a module may do much when imported."""
    for found in pkgutil.iter_modules(getattr(package, "__path__", ())):
        place = f"{package.__name__}.{found.name}"
        with contextlib.suppress(ImportError, SyntaxError, ValueError):  # not a text, or not of Python
            spec = importlib.util.find_spec(place)
            loader = spec.loader if spec is not None else None
            text = loader.get_source(place) if isinstance(loader, InspectLoader) else None
            if any(getattr(node, "name", None) == name for node in ast.parse(text or "").body):
                return place
    return None


def _guarded(what: str, module: ModuleType, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(what, error, module) from error


def _raised(what: str, error: BaseException, module: ModuleType | None) -> TaskError:
    return TaskError(
        f"{what}: {type(error).__name__}: {text_of(error)} ({_location(error, module)})",
        remedy_for(error, "fix that line, or change the task options"),
    )


def remedy_for(error: BaseException, otherwise: str) -> str:
    """What to do about an error of a task: install the package that it lacks; `otherwise` for all other errors."""
    lacks = isinstance(error, ImportError)
    return f"install the package that this names for {sys.executable}, or {otherwise}" if lacks else otherwise


def _location(error: BaseException, module: ModuleType | None) -> str:
    """file:line of the innermost frame in `module`, else in any file except this one and the import system's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    own = getattr(module, "__file__", None)  # a notebook has none
    inside = [frame for frame in frames if frame.filename == own] or frames
    if inside:
        return f"{inside[-1].filename}:{inside[-1].lineno}"
    return str(own or "no file")


def parse_options(name: str, factory: Callable[..., object], options: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments for `factory`; TaskError for an unknown or missing option, or a value of the wrong type."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        raise TaskError(
            f"task {name!r}: Python does not know the parameters of {described(factory)}",
            "give a subclass of fedgsp.Task, or a function that returns one",
        ) from None
    accepted = {key: value for key, value in parameters.items() if value.kind in _BY_KEYWORD}
    # A parameter **rest accepts every other option.
    rest = [value for value in parameters.values() if value.kind is inspect.Parameter.VAR_KEYWORD]
    for key in options:
        if key not in accepted and not rest:
            raise TaskError(f"task {name!r} has no option {key!r}", suggestion(key, accepted, "it takes"))
    for key, value in accepted.items():
        require(
            value.default is not value.empty or key in options,
            f"task {name!r} needs the option {key!r}",
            f"give --task-option {key}=VALUE",
        )
    return {key: _parse(name, factory, accepted.get(key) or rest[0], key, text) for key, text in options.items()}


def _parse(name: str, factory: Callable[..., object], parameter: inspect.Parameter, key: str, text: str) -> Any:
    annotation = _annotation(name, factory, parameter)
    try:
        return _value(annotation, text)
    except ValueError:
        raise TaskError(f"task {name!r}: option {key} cannot be {text!r}", f"give {_wanted(annotation)}") from None
    except TypeError:
        raise TaskError(
            f"task {name!r}: option {key!r} has the type {annotation!r}, which cannot be given as text",
            "annotate the parameter as int, float, bool, str, pathlib.Path or Literal, optionally with | None",
        ) from None


def _annotation(name: str, factory: Callable[..., object], parameter: inspect.Parameter) -> Any:
    """The resolved type of one parameter. Other parameters are not resolved, because they may have unknown types."""
    if parameter.annotation is parameter.empty:
        told = parameter.default is not None and parameter.default is not parameter.empty
        return (Path if isinstance(parameter.default, Path) else type(parameter.default)) if told else str
    target: Any = factory.func if isinstance(factory, functools.partial) else factory
    function = target.__init__ if inspect.isclass(target) else inspect.unwrap(target)
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    # A module may import these names for its type checker only.
    known = {"pathlib": pathlib, "typing": typing, "Any": typing.Any, "Literal": typing.Literal, "Path": Path}
    try:
        return typing.get_type_hints(holder, globalns=known | getattr(function, "__globals__", {}))["it"]
    except Exception as error:
        raise TaskError(
            f"task {name!r}: the type {parameter.annotation!r} of {parameter.name!r} cannot be resolved ({error})",
            "import the type outside `if TYPE_CHECKING`",
        ) from error


def _value(annotation: Any, text: str) -> Any:
    """Converts a text; ValueError if the text is wrong, TypeError if no text can have this type."""
    if annotation in _PLAIN:
        return _PLAIN[annotation][0](text)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        named = {str(choice): choice for choice in arguments}
        if text in named:
            return named[text]
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        if types.NoneType in arguments and text.strip().lower() in ("", "none"):
            return None
        for choice in arguments:
            with contextlib.suppress(ValueError):
                if choice is not types.NoneType:
                    return _value(choice, text)
    else:
        raise TypeError(annotation)
    raise ValueError(text)


def _wanted(annotation: Any) -> str:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join("none" if choice is types.NoneType else _wanted(choice) for choice in arguments)
    return _PLAIN[annotation][1]
