"""Writes a task class of a notebook or a script as a module, because nodes are processes that import their task.

The source of the class is written with the imports, functions, classes and plain values that it uses. Nothing is
pickled: what has no source and is no plain value is refused by name.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib.util
import inspect
import itertools
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsp.errors import TaskError
from fedgsp.files import put
from fedgsp.tasks import FOLDER_VARIABLE, MODULES_VARIABLE
from fedgsp_runs.definitions import definition_of, enclosed_by, submodules, used_names
from fedgsp_runs.values import NotWrittenError, as_source

#: Where notebooks and scripts define their names.
MAIN = "__main__"
#: How the name of a written module begins in this process; a number follows, since threads may write at once.
_WRITTEN = "_written_by_fedgsp_runs_"
_NUMBERS = itertools.count()
_ABSENT = object()
_REMEDY = "make it inside the class, give it as an option of the task, or put the task into a module"


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
        return Source(f"{task.__module__}:{name}", _root(task.__module__))
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
            root = _parent(spec.origin if spec.has_location else None, spec.submodule_search_locations)
            return next(iter(_only_here([root])), None)
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


def module_of(task: Callable[..., Any]) -> str:
    """The text of a module that defines `task` and what it uses; raises TaskError for what cannot be written."""
    writer = _Writer(vars(sys.modules[MAIN]))
    writer.define(task)
    text = f'"""Written by fedgsp_runs from a notebook or a script."""\n\n{writer.text()}'
    compared = [one for one in writer.defined if isinstance(one, type) or hasattr(one, "__wrapped__")]
    if compared:
        written = _executed(text)
        for one in compared:
            (_check_unchanged if isinstance(one, type) else _check_wrappers)(one, written[one.__name__])
    return text


class _Writer:
    """Collects definitions; each stands behind those that it needs when it is executed."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._imports: dict[str, None] = {}
        self._definitions: list[str] = []
        #: What the module has by its names.
        self._things: dict[str, Any] = {}
        #: The functions and classes that the module defines.
        self.defined: list[Any] = []

    def text(self) -> str:
        """The module."""
        future = [line for line in self._imports if line.startswith("from __future__")]
        others = [line for line in self._imports if line not in future]
        # First, as here: otherwise an installed module of the same name would take the place of one that was used.
        folders = [f"if {one!r} not in sys.path:\n    sys.path.insert(0, {one!r})" for one in _folders(others)]
        head = [*future, *(["import sys", *folders] if folders else []), *others, ""]
        return "\n".join([*head, *(f"\n{one}\n" for one in self._definitions)])

    def define(self, thing: Any) -> None:
        """Adds a function or a class, after all that it uses."""
        name = thing.__name__
        self._things[name] = thing
        source = definition_of(thing)
        if "annotations" in self._names and "__future__" in str(getattr(self._names["annotations"], "__module__", "")):
            self._imports["from __future__ import annotations"] = None
        found = [used for used in used_names(source) if used in self._names]
        for used in found:
            if not _is_builtin(used, self._names[used]):
                self._use(used, name)
        modules = {used: self._names[used] for used in found if isinstance(self._names[used], types.ModuleType)}
        for one in submodules(source, {used: module.__name__ for used, module in modules.items()}):
            self._imports[_aliased(one)] = None  # importing a package need not import them
        self._definitions.append(source.rstrip())
        self.defined.append(thing)

    def _use(self, name: str, user: str) -> None:
        value = self._names[name]
        if self._has(name, value, user):
            return
        if isinstance(value, types.ModuleType):
            self._imports[f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"] = None
        elif _is_of_main(value):
            self._define_of_main(name, value, user)
        elif (line := _imported(name, value)) is not None:
            self._imports[line] = None
        else:
            self._definitions.append(f"{name} = {self._written(name, value, user)}")
        self._things[name] = value

    def _has(self, name: str, value: Any, user: str) -> bool:
        """Whether the module has a value under a name; raises TaskError if it has another one there."""
        if name in self._things and self._things[name] is not value:
            raise TaskError(f"{user} uses two things that have the name {name!r}", "give each a name of its own")
        return name in self._things

    def _written(self, name: str, value: Any, user: str) -> str:
        """The source of a value; raises TaskError if it has none."""
        try:
            return as_source(value, lambda thing: self._referred(thing, user))
        except RecursionError:
            what = f"a {type(value).__name__} that holds itself"
            raise TaskError(f"{user} uses {name!r}, {what}, which cannot be written as source", _REMEDY) from None
        except NotWrittenError as error:
            kind, held = type(value).__name__, type(error.value).__name__
            what = f"a {kind}" if error.value is value else f"a {kind} that holds a {held}"
            clear = f"call {name}.clear() before if the task fills it itself, " if hasattr(value, "clear") else ""
            raise TaskError(
                f"{user} uses {name!r}, {what}, which cannot be written as source", f"{clear}{_REMEDY}"
            ) from None

    def _referred(self, thing: Any, user: str) -> str:
        """What the module calls a module, a class or a function; raises NotWrittenError for others."""
        if isinstance(thing, types.ModuleType):
            self._imports[_aliased(thing.__name__)] = None
            return _alias(thing.__name__)
        if _is_of_main(thing):
            self._define_of_main(thing.__name__, thing, user)
            return str(thing.__name__)
        if (home := _home(thing)) is None:
            raise NotWrittenError(thing)
        return f"{self._referred(sys.modules[home], user)}.{thing.__name__}"

    def _define_of_main(self, name: str, value: Any, user: str) -> None:
        known = value.__name__
        if not known.isidentifier():
            raise TaskError(f"{user} uses {name!r}, a lambda, which cannot be written as source", "write it with def")
        if not self._has(known, value, user):
            if enclosed := enclosed_by(value):
                raise TaskError(
                    f"{user} uses {name!r}, which is made inside a function and uses variables of that function:"
                    f" {', '.join(enclosed)}",
                    "define it outside of the function; if a decorator makes it, let that use functools.wraps",
                )
            self.define(value)
        if known != name:
            self._definitions.append(f"{name} = {known}")


def _alias(module: str) -> str:
    return f"_{module.replace('.', '_')}"


def _aliased(module: str) -> str:
    """The line that imports a module by a name that no script uses."""
    return f"import {module} as {_alias(module)}"


def _executed(text: str) -> dict[str, Any]:
    """What a module with this text defines; raises TaskError if it raises."""
    module = types.ModuleType(f"{_WRITTEN}{next(_NUMBERS)}")
    sys.modules[module.__name__] = module  # data classes look for their module there
    try:
        exec(compile(text, "<the module written for the nodes>", "exec"), vars(module))
    except Exception as error:
        what = f"the module that is written for the nodes raises {type(error).__name__}: {error}"
        raise TaskError(what, "put the task into a module") from error
    finally:
        del sys.modules[module.__name__]
    return dict(vars(module))


def _check_unchanged(live: type, written: type) -> None:
    """Raises TaskError if plain attributes or methods were set after the class statement: nodes would have the old.

    What a class may fill while it is used, as a cache, does not count: names that begin with an underscore, and lists,
    dictionaries and sets that the statement makes empty.
    """
    for name, value in vars(live).items():
        before = vars(written).get(name, _ABSENT)
        if name.startswith("_") or (isinstance(before, list | dict | set) and not before):
            continue
        if _told(value) in (None, _told(before)):
            continue
        statement = "does not set it" if before is _ABSENT else "says otherwise"
        raise TaskError(
            f"{live.__name__}.{name} was set after the class statement, which {statement}; the nodes would not see it",
            f"write {name} into the class",
        )


def _check_wrappers(live: Any, written: Any) -> None:
    """Raises TaskError if a function got a wrapper after its statement, or lost one: nodes would not see that."""
    if [*_layers(live, True)] != [*_layers(written, True)]:
        raise TaskError(
            f"the function {live.__name__!r} was wrapped after its def statement; the nodes would not see it",
            "write the wrapper as a decorator, above the def statement",
        )


def _told(value: Any) -> str | None:
    """What two values of a class attribute must have in common; None for those that are not compared."""
    if isinstance(value, types.FunctionType) or hasattr(value, "__wrapped__"):
        return f"function {' '.join(_layers(value, False))}"
    try:
        return as_source(value, lambda thing: str(getattr(thing, "__qualname__", thing.__name__)))
    except (NotWrittenError, AttributeError, RecursionError):
        return None


def _layers(value: Any, others: bool) -> Iterator[str]:
    """The names of a function and its wrappers, from the outermost; those of other modules only with `others`.

    torch itself wraps a method of an optimiser's class when that is used.
    """
    while (inner := getattr(value, "__wrapped__", None)) is not None:
        if others or str(getattr(value, "__globals__", {}).get("__name__")).startswith((MAIN, _WRITTEN)):
            yield _name_of(value)
        value = inner
    yield _name_of(value)


def _name_of(value: Any) -> str:
    code = getattr(value, "__code__", None)
    return str(code.co_qualname if isinstance(code, types.CodeType) else type(value).__qualname__)


def _is_builtin(name: str, value: Any) -> bool:
    """Whether every module has this name already: as a builtin, also in the form that a notebook gives it.

    A notebook has its own `open`, `exit` and `quit`.
    """
    if not hasattr(builtins, name):
        return False
    home = getattr(value, "__globals__", {}).get("__name__") or type(value).__module__
    notebooks = home.partition(".")[0] in ("IPython", "ipykernel")
    return notebooks or value is getattr(builtins, name) or (name.startswith("__") and name.endswith("__"))


def _is_of_main(value: Any) -> bool:
    """Whether a notebook or a script defines a class or function, perhaps with a decorator such as `lru_cache`."""
    if getattr(value, "__module__", None) != MAIN or not isinstance(getattr(value, "__name__", None), str):
        return False
    return isinstance(value, type) or isinstance(inspect.unwrap(value), types.FunctionType)


def _imported(name: str, value: Any) -> str | None:
    """The line that imports a value of another module; None if no module has it."""
    module = _home(value)
    if module is None:
        return None
    known = value.__name__
    return f"from {module} import {known}" if known == name else f"from {module} import {known} as {name}"


def _home(value: Any) -> str | None:
    """The module from which a class or function can be imported by its own name, if there is one."""
    known = getattr(value, "__name__", None)
    module = getattr(value, "__module__", None) or type(value).__module__  # that of `numpy.exp` is only in its type
    if module == MAIN or not isinstance(known, str):
        return None
    return module if getattr(sys.modules.get(module), known, None) is value else None


def _folders(imports: list[str]) -> list[str]:
    """The folders in which only this process finds the modules of these lines, such as those beside a script."""
    tops = dict.fromkeys(line.split()[1].partition(".")[0] for line in imports)
    roots = dict.fromkeys(_root(top) for top in tops if top in sys.modules)
    return [str(one) for one in _only_here(roots)]


def _only_here(folders: Iterable[Path | None]) -> list[Path]:
    """Those of the folders in which this process looks for modules, and a new process would not look."""
    mine = {Path(entry).resolve() for entry in sys.path}
    given = [*sysconfig.get_paths().values(), *os.environ.get("PYTHONPATH", "").split(os.pathsep), ""]
    return [one for one in folders if one is not None and one in mine - {Path(entry).resolve() for entry in given}]


def _root(module: str) -> Path | None:
    """The folder from which a module's package is imported, if it has a file."""
    top = sys.modules[module.partition(".")[0]]
    return _parent(getattr(top, "__file__", None), getattr(top, "__path__", None))


def _parent(file: str | None, paths: Iterable[str] | None) -> Path | None:
    """The folder that has a module's file, or one of the folders of a package without `__init__.py`."""
    if file is None:  # of Python itself, or such a package
        found = list(paths or ())
        return Path(found[0]).resolve().parent if found else None
    path = Path(file).resolve()
    return path.parent.parent if path.name == "__init__.py" else path.parent
