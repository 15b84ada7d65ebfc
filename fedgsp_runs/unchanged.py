"""Refuses definitions whose source says something else than what the script uses: nodes would train other code.

The written module is executed, and what it defines is compared with what the script has. What cannot be compared is
not refused.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedgsp.errors import TaskError
from fedgsp_runs.attributes import answer, own, unwrapped
from fedgsp_runs.codes import codes_in, compiled_alone, same_code
from fedgsp_runs.scripts import MAIN
from fedgsp_runs.values import NotWrittenError, as_source, shown

#: How the name of a written module begins in this process; a number follows, since threads may write at once.
_WRITTEN = "_written_by_fedgsp_runs_"
_NUMBERS = itertools.count()
#: What `__name__` and `__module__` are in such a module.
_NAME = re.compile(rf"{_WRITTEN}\d+")
_ABSENT = object()


class _OtherError(Exception):
    """Something else stands there, and not another version of the same thing."""


def check_unchanged(things: Iterable[Any], text: str) -> None:
    """Raises TaskError if a module with this text raises, or defines something else than these functions and classes.

    What a class or a function may fill while it is used, as a cache, does not count: plain attributes whose names
    begin with an underscore, and lists, dictionaries and sets that the statement makes empty.
    """
    written = _executed(text)
    pairs = [(one, written.get(one.__name__)) for one in things]
    comparison = _Comparison(pairs, compiled_alone(text))
    for live, other in pairs:
        comparison.check(live, other)


def _executed(text: str) -> dict[str, Any]:
    """What a module with this text defines; raises TaskError if it raises."""
    module = ModuleType(f"{_WRITTEN}{next(_NUMBERS)}")
    sys.modules[module.__name__] = module  # data classes look for their module there
    try:
        exec(compile(text, "<the module written for the nodes>", "exec", dont_inherit=True), vars(module))
    except Exception as error:
        what = f"the module that is written for the nodes raises {type(error).__name__}: {error}"
        remedy = "let the definitions allow to be executed again in this process, or put the task into a module"
        raise TaskError(what, remedy) from error
    finally:
        del sys.modules[module.__name__]
    return dict(vars(module))


class _Comparison:
    """Compares what the script has with what the written module has; each pair once, since pairs refer to others."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]], alone: Mapping[tuple[str, int], CodeType]) -> None:
        self._pairs = {(id(live), id(written)) for live, written in pairs}
        self._alone = alone
        self._seen: set[tuple[int, int]] = set()

    def check(self, live: Any, written: Any) -> None:
        """Raises TaskError if a function or class is written as another one."""
        label = str(live.__name__)
        try:
            if isinstance(live, type):
                self._class(label, live, written)
            elif isinstance(written, staticmethod):  # `acc = Model.acc`: the statement as it stands in the class
                self._function(label, live, written.__func__, True)
            else:
                self._function(label, live, written, True)
        except _OtherError:
            if isinstance(live, type) or written is None:
                raise _changed(label) from None
            raise TaskError(
                f"the function {label!r} was wrapped after its def statement; the nodes would not see it",
                "write the wrapper as a decorator, above the def statement",
            ) from None

    def _is_new(self, live: Any, written: Any) -> bool:
        known = len(self._seen)
        self._seen.add((id(live), id(written)))
        return len(self._seen) > known

    def _class(self, label: str, live: type, written: Any) -> None:
        if live is written or not self._is_new(live, written):
            return
        if not isinstance(written, type) or live.__name__ != written.__name__:
            raise _OtherError
        if not _is_of_script(live) or not _is_of_script(written):
            if live.__module__ != written.__module__:
                raise _OtherError
            return
        self._bases(label, live, written)
        mine, theirs = dict(vars(live)), dict(vars(written))
        if [*mine.get("__annotations__", ())] != [*theirs.get("__annotations__", ())]:
            raise _changed(label)
        self._given(label, _given(live), _given(written))
        for name in {**mine, **theirs}:
            if name not in theirs and _is_wrapped_by_torch(name, live):
                continue
            self._attribute(label, name, mine.get(name, _ABSENT), theirs.get(name, _ABSENT))

    def _given(self, label: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        if mine.keys() != theirs.keys():
            raise _changed(label)
        for name, value in mine.items():
            try:
                self._compare(f"{label}.{name}", value, theirs[name])
            except _OtherError:
                raise _changed(f"{label}.{name}") from None

    def _bases(self, label: str, live: type, written: type) -> None:
        mine, theirs = (type(live), *live.__bases__), (type(written), *written.__bases__)
        try:
            if len(mine) != len(theirs):
                raise _OtherError
            for one, other in zip(mine, theirs, strict=True):
                if (id(one), id(other)) not in self._pairs:  # which are checked under their own names
                    self._class(one.__name__, one, other)
        except (_OtherError, TaskError):
            raise TaskError(
                f"a base class of {label!r} is not the one that its class statement names now",
                f"the base class was defined again, or the script was edited: execute the definition of {label} again",
            ) from None

    def _attribute(self, label: str, name: str, value: Any, before: Any) -> None:
        if name.startswith("_") and not (_has_code(before) and (value is _ABSENT or _has_code(value))):
            return
        if value is _ABSENT and not _may_be_filled(before):
            raise _changed(f"{label}.{name}")
        for held in _held(value):
            if held not in _held(before):
                raise TaskError(
                    f"{label}.{name} holds {held}, and would not hold it on the nodes, which get only what the task"
                    " names",
                    f"use {held} by name in a method of the task, or write it into {name} in the class statement",
                )
        try:
            self._compare(f"{label}.{name}", value, before)
        except _OtherError:
            statement = "does not set it" if before is _ABSENT else "says otherwise or gives a new value each time"
            raise TaskError(
                f"{label}.{name} was set after the class statement, which {statement}; the nodes would not see it",
                f"write {name} into the class, execute it again if it was edited, or call it _{name} if a method sets"
                " it",
            ) from None

    def _compare(self, label: str, value: Any, before: Any) -> None:
        if _may_be_filled(before) or isinstance(value, logging.Logger):  # which often has the name of its module
            return
        if isinstance(value, type):
            self._class(label, value, before)
        elif (told := _told(value)) is not None:
            told_before = _told(before)
            if told_before is None or told[0] != told_before[0]:
                raise _OtherError
            for one, other in zip(told[1], told_before[1], strict=True):
                if isinstance(one, type | FunctionType):
                    self._compare(label, one, other)
        elif parts := _parts(value):
            parts_before = _parts(before)
            if len(parts) != len(parts_before):
                raise _OtherError
            for one, other in zip(parts, parts_before, strict=True):
                self._function(label, one, other, False)
        elif before is _ABSENT or _has_code(before):
            raise _OtherError

    def _function(self, label: str, live: Any, written: Any, others: bool) -> None:
        if live is written or not self._is_new(live, written):
            return
        mine, theirs = [*_layers(live, others)], [*_layers(written, others)]
        if [*map(_name_of, mine[:-1])] != [*map(_name_of, theirs[:-1])]:
            raise _OtherError
        self._registered(label, live, written)
        for one, other in zip(mine, theirs, strict=True):
            if not isinstance(one, FunctionType) or not _is_of_script(one):
                if _name_of(one) != _name_of(other):
                    raise _OtherError
                continue
            if not isinstance(other, FunctionType) or one.__code__.co_name != other.__code__.co_name:
                raise _OtherError
            code, written_code = one.__code__, other.__code__
            alone = self._alone.get((written_code.co_qualname, written_code.co_firstlineno), written_code)
            if not same_code(code, written_code) and not same_code(code, alone):
                raise _changed(label)
            self._defaults(label, one, other)
            self._variables(label, one, other)

    def _defaults(self, label: str, live: FunctionType, written: FunctionType) -> None:
        mine, theirs = _defaults(live), _defaults(written)
        if mine.keys() != theirs.keys():
            raise _changed(label)
        for name, value in mine.items():
            what = f"the default of {name} in {label}", "its def statement would give {} now", "def statement"
            self._value(f"{label}({name})", value, theirs[name], *what)

    def _variables(self, label: str, live: FunctionType, written: FunctionType) -> None:
        """Raises TaskError for other values of the variables around a function, such as those of a decorator."""
        theirs = _variables(written)
        for name, value in _variables(live).items():
            if name not in theirs or _may_change(live.__code__, name, theirs[name]):
                continue
            what = f"the variable {name} around {label}", "executing the definition again gives {}", "definition"
            self._value(f"{label}({name})", value, theirs[name], *what)

    def _value(self, label: str, value: Any, other: Any, what: str, again: str, statement: str) -> None:
        """Raises TaskError for a value that a statement does not give again.

        The error says `what` the value is, and with `again` what the statement gives now.
        """
        try:
            self._compare(label, value, other)
        except _OtherError:
            raise TaskError(
                f"{what} is {shown(value)}, and {again.format(shown(other))}",
                f"write the value into the {statement}, or make it an option of the task",
            ) from None

    def _registered(self, label: str, live: Any, written: Any) -> None:
        """Raises TaskError for functions that `functools.singledispatch` calls, and that stand elsewhere."""
        mine, theirs = _registry(live), _registry(written)
        if len(mine) != len(theirs):
            raise TaskError(
                f"functions are registered for {label!r} after its def statement, and only that statement is written",
                "decide by isinstance in its body, or put the task into a module",
            )
        for one, other in zip(mine, theirs, strict=True):
            self._function(label, one, other, False)


def _changed(label: str) -> TaskError:
    return TaskError(
        f"{label} is not what its source says now: the script was edited, a cell was executed again, or a name that"
        " the definition uses has another value",
        "execute the definition again, or put the task into a module",
    )


def _may_be_filled(before: Any) -> bool:
    return isinstance(before, list | dict | set) and not before


def _is_wrapped_by_torch(name: str, kind: type) -> bool:
    """Whether torch has put its wrapper of an inherited method into a class, as the first optimiser of it does."""
    value = vars(kind)[name]
    inherited = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
    of_torch = str((own(value, "__globals__") or {}).get("__name__")).startswith("torch.")
    return of_torch and inherited is not None and unwrapped(value) is unwrapped(inherited)


def _held(value: Any) -> list[str]:
    """The names of the functions and classes of the script that a list, a dictionary or a set holds."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list | set) else ()
    return [str(one.__name__) for one in held if isinstance(one, type | FunctionType) and _is_of_script(one)]


def _told(value: Any) -> tuple[str, list[Any]] | None:
    """A plain value as text, and the modules, classes and functions that it holds; None for others."""
    held: list[Any] = []

    def refer(thing: Any) -> str:
        held.append(thing)
        return str(answer(thing, "__name__"))

    try:
        return _NAME.sub(MAIN, as_source(value, refer)), held
    except (NotWrittenError, RecursionError):
        return None


def _parts(value: Any) -> list[Any]:
    """The functions of an attribute: itself, or what a property and its like call."""
    if isinstance(value, FunctionType) or own(value, "__wrapped__") is not None:
        return [value]
    found = (own(value, name) for name in ("fget", "fset", "fdel", "func"))
    return [one for one in found if one is not None]


def _has_code(value: Any) -> bool:
    """Whether the script has written a function that is the value of an attribute, or a part of it."""
    return any(_is_of_script(layer) for part in _parts(value) for layer in _layers(part, True))


def _is_of_script(thing: Any) -> bool:
    """Whether a function or a class is one of the script, or of the module written for it."""
    names = own(thing, "__globals__") or {}
    module = thing.__module__ if isinstance(thing, type) else names.get("__name__")
    return str(module).startswith((MAIN, _WRITTEN))


def _layers(value: Any, others: bool) -> Iterator[Any]:
    """A function and its wrappers, from the outermost; wrappers of other modules only with `others`.

    torch itself wraps a method of an optimiser's class when that is used.
    """
    while (inner := own(value, "__wrapped__")) is not None:
        if others or _is_of_script(value):
            yield value
        value = inner
    yield value


def _name_of(value: Any) -> str:
    code = own(value, "__code__")
    return str(code.co_qualname if isinstance(code, CodeType) else type(value).__qualname__)


def _defaults(function: FunctionType) -> Mapping[str, Any]:
    """The parameters of a function that have defaults, with these."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return {**dict(zip(names, given, strict=False)), **(function.__kwdefaults__ or {})}


def _given(kind: type) -> Mapping[str, Any]:
    """The values of members, and the defaults of fields, that are no attributes of their class."""
    found: dict[str, Any] = dict(own(kind, "_field_defaults") or {}) if issubclass(kind, tuple) else {}
    if isinstance(kind, enum.EnumMeta):
        members: Mapping[str, Any] = kind.__members__
        found |= {name: one.value for name, one in members.items()}
    return found | {name: one.default_factory for name, one in vars(kind).get("__dataclass_fields__", {}).items()}


def _variables(function: FunctionType) -> Mapping[str, Any]:
    """The variables of the functions around a function, with their values."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def _may_change(code: CodeType, name: str, before: Any) -> bool:
    """Whether a variable around a function need not keep its value: calls may change it, such as a counter or a cache.

    Python itself and data classes have variables there whose names begin with an underscore.
    """
    steps = [step for one in (code, *codes_in(code)) for step in dis.get_instructions(one)]
    if name.startswith("_") or any(one.opname == "STORE_DEREF" and one.argval == name for one in steps):
        return True
    filled = isinstance(before, list | dict | set) and any(one.opname == "STORE_SUBSCR" for one in steps)
    return filled or _may_be_filled(before)


def _registry(value: Any) -> list[Any]:
    """The functions among which `functools.singledispatch` decides, if it has made a value."""
    found = own(value, "registry") or own(own(value, "dispatcher"), "registry")
    return [*found.values()] if isinstance(found, Mapping) else []
