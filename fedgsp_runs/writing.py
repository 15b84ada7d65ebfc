"""Writes the definitions of a notebook or a script as the text of a module, for processes that import their task.

The source of a task class is written with the imports, functions, classes and plain values that it uses. Nothing is
pickled: what has no source and is no plain value is refused by name.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from fedgsp.errors import TaskError
from fedgsp_runs.aliases import has_own_name, is_of_types, made
from fedgsp_runs.attributes import answer, own, unwrapped
from fedgsp_runs.codes import is_of_future
from fedgsp_runs.definitions import definition_of, enclosed_by, function_of
from fedgsp_runs.folders import folders_of
from fedgsp_runs.imports import alias, aliased, home, imported, imported_as_in_the_script
from fedgsp_runs.order import ordered
from fedgsp_runs.scripts import MAIN
from fedgsp_runs.unchanged import check_unchanged
from fedgsp_runs.uses import submodules, used_names
from fedgsp_runs.values import NotWrittenError, as_source, is_plain

_REMEDY = "make it inside the class, give it as an option of the task, or put the task into a module"
#: Function or class -> its source, which stays that of its statement if the script is edited while a sweep plays it.
_SOURCES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_FUTURE = "from __future__ import annotations"


def module_of(task: Callable[..., Any]) -> str:
    """The text of a module that defines `task` and what it uses; raises TaskError for what cannot be written."""
    writer = _Writer(vars(sys.modules[MAIN]))
    writer.define(task)
    text = f'"""Written by fedgsp_runs from a notebook or a script."""\n\n{writer.text()}'
    check_unchanged([thing for thing, _ in writer.defined], text)
    _SOURCES.update((unwrapped(thing), source) for thing, source in writer.defined)
    return text


class _Writer:
    """Collects definitions, and what each of them uses."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._imports: dict[str, None] = {}
        #: Name -> the statement that gives it its value.
        self._definitions: dict[str, str] = {}
        #: Name -> the names that its statement uses -> whether it needs them when it is executed.
        self._uses: dict[str, dict[str, bool]] = {}
        #: What the module has by its names.
        self._things: dict[str, Any] = {}
        #: The functions and classes that the module defines, with their sources.
        self.defined: list[tuple[Any, str]] = []
        if "__future__" in str(answer(names.get("annotations"), "__module__")):
            self._imports[_FUTURE] = None

    def text(self) -> str:
        """The module."""
        others = [line for line in self._imports if line != _FUTURE]
        # First, as here: otherwise an installed module of the same name would take the place of one that was used.
        folders = [f"if {one!r} not in sys.path:\n    sys.path.insert(0, {one!r})" for one in folders_of(others)]
        future = [_FUTURE] if _FUTURE in self._imports else []
        head = [*future, *(["import sys", *folders] if folders else []), *others, ""]
        return "\n".join([*head, *(f"\n{self._definitions[name]}\n" for name in ordered(self._uses))])

    def define(self, thing: Any) -> None:
        """Adds a function or a class, and all that it uses."""
        name = thing.__name__
        self._things[name] = thing
        inner = unwrapped(thing)
        source = _SOURCES.get(inner) or definition_of(thing)
        if _is_of_future(inner):
            self._imports[_FUTURE] = None
        evaluated = _FUTURE not in self._imports and sys.version_info < (3, 14)
        found = {used: now for used, now in used_names(source, evaluated).items() if used in self._names}
        for used in found:
            if not _is_builtin(used, self._names[used]):
                self._use(used, name)
        modules = {used: self._names[used] for used in found if isinstance(self._names[used], types.ModuleType)}
        for one in submodules(source, {used: module.__name__ for used, module in modules.items()}):
            self._imports[aliased(one)] = None  # importing a package need not import them
        self._add(name, source.rstrip(), found)
        self.defined.append((thing, source))

    def _add(self, name: str, statement: str, uses: dict[str, bool]) -> None:
        self._definitions[name] = statement
        self._uses[name] = {used: now for used, now in uses.items() if used != name}

    def _use(self, name: str, user: str) -> None:
        value = self._names[name]
        if self._has(name, value, user):
            return
        if isinstance(value, types.ModuleType):
            self._imports[f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"] = None
        elif _is_of_main(value):
            self._define_of_main(name, value, user)
        elif line := imported(name, value) or (not is_plain(value) and imported_as_in_the_script(name, value)):
            self._imports[line] = None
        else:
            self._things[name] = value  # a function that the value holds may use it
            self._write(name, value, user)
        self._things[name] = value

    def _has(self, name: str, value: Any, user: str) -> bool:
        """Whether the module has a value under a name; raises TaskError if it has another one there."""
        if name in self._things and self._things[name] is not value:
            raise TaskError(f"{user} uses two things that have the name {name!r}", "give each a name of its own")
        return name in self._things

    def _write(self, name: str, value: Any, user: str) -> None:
        """Adds a value; raises TaskError if it has no source."""
        uses: dict[str, bool] = {}

        def refer(thing: Any) -> str:
            found = self._referred(thing, user)
            uses[found.partition(".")[0]] = True
            return found

        known = self._own_name(value)
        if known is not None and known != name:
            self._use(known, user)
            self._add(name, f"{name} = {known}", {known: True})
            return
        try:
            written = made(value, refer) if is_of_types(value) else as_source(value, refer)
        except RecursionError:
            what = f"a {type(value).__name__} that holds itself"
            raise TaskError(f"{user} uses {name!r}, {what}, which cannot be written as source", _REMEDY) from None
        except NotWrittenError as error:
            if is_plain(value) and (line := imported_as_in_the_script(name, value)):
                self._imports[line] = None
                return
            kind, held = type(value).__name__, type(error.value).__name__
            what = f"a {kind}" if error.value is value else f"a {kind} that holds a {held}"
            fills = type(value) in (dict, list, set) and not isinstance(error.value, type | types.FunctionType)
            clear = f"call {name}.clear() before if the task fills it itself, " if fills else ""
            raise TaskError(
                f"{user} uses {name!r}, {what}, which cannot be written as source", f"{clear}{_REMEDY}"
            ) from None
        self._add(name, f"{name} = {written}", uses)

    def _referred(self, thing: Any, user: str) -> str:
        """What the module calls a module, a class or a function; raises NotWrittenError for others."""
        if isinstance(thing, types.ModuleType):
            self._imports[aliased(thing.__name__)] = None
            return alias(thing.__name__)
        if known := self._own_name(thing):
            self._use(known, user)
            return known
        if _is_of_main(thing):
            if path := self._path(thing):
                self._use(path.partition(".")[0], user)
                return path
            self._define_of_main(thing.__name__, thing, user)
            return str(thing.__name__)
        if (module := home(thing)) is None:
            raise NotWrittenError(thing)
        return f"{self._referred(sys.modules[module], user)}.{thing.__name__}"

    def _own_name(self, thing: Any) -> str | None:
        """The name of a type variable, a named tuple and their like, if the script has it under this name."""
        known = str(thing.__name__) if has_own_name(thing) else ""
        return known if known and self._names.get(known) is thing else None

    def _path(self, thing: Any) -> str | None:
        """What the module calls a class inside a class, or a method that needs its class, because it has `super()`."""
        inner, path = unwrapped(thing), str(answer(thing, "__qualname__"))
        top, *rest = path.split(".")
        found = self._names.get(top)
        for part in rest:
            found = answer(found, part)
        needs = isinstance(inner, type) or "__class__" in inner.__code__.co_freevars
        return path if rest and needs and found is thing else None

    def _define_of_main(self, name: str, value: Any, user: str) -> None:
        if path := self._path(value):
            top = path.partition(".")[0]
            self._use(top, user)
            self._add(name, f"{name} = {path}", {top: True})
            return
        known = value.__name__
        if not known.isidentifier():
            raise TaskError(f"{user} uses {name!r}, a lambda, which cannot be written as source", "write it with def")
        if not self._has(known, value, user):
            enclosed = [] if unwrapped(value) in _SOURCES else enclosed_by(value)
            if "__class__" in enclosed:
                raise TaskError(
                    f"{user} uses {name!r}, a method that needs its class, and no name leads to that",
                    "give each class a name of its own, at the top level of the script or of a cell",
                )
            if enclosed:
                raise TaskError(
                    f"{user} uses {name!r}, which is made inside a function and uses variables of that function:"
                    f" {', '.join(enclosed)}",
                    "define it outside of the function; if a decorator makes it, let that use functools.wraps",
                )
            self.define(value)
        if known != name:
            self._add(name, f"{name} = {known}", {known: True})


def _is_of_future(thing: Any) -> bool:
    """Whether the annotations of a function or class are texts, by `from __future__ import annotations`."""
    functions = [function_of(one) for one in vars(thing).values()] if isinstance(thing, type) else [thing]
    of_main = [one for one in functions if isinstance(one, types.FunctionType) and one.__module__ == MAIN]
    return any(is_of_future(one.__code__) for one in of_main)


def _is_builtin(name: str, value: Any) -> bool:
    """Whether every module has this name already: as a builtin, also in the form that a notebook gives it.

    A notebook has its own `open`, `exit` and `quit`, and takes the last two away from the builtins during a cell.
    """
    if not hasattr(builtins, name) and name not in ("exit", "quit"):
        return False
    module = str((own(value, "__globals__") or {}).get("__name__") or type(value).__module__)
    notebooks = module.partition(".")[0] in ("IPython", "ipykernel")
    return notebooks or value is getattr(builtins, name, None) or (name.startswith("__") and name.endswith("__"))


def _is_of_main(value: Any) -> bool:
    """Whether a notebook or a script defines a class or function, perhaps with a decorator such as `lru_cache`."""
    if answer(value, "__module__") != MAIN or not isinstance(answer(value, "__name__"), str) or has_own_name(value):
        return False
    return isinstance(value, type) or isinstance(unwrapped(value), types.FunctionType)
