"""Refuses definitions whose source says something else than what the script uses: nodes would train other code."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from fedgsp.errors import TaskError
from fedgsp_runs.attributes import answer, own
from fedgsp_runs.scripts import MAIN
from fedgsp_runs.values import NotWrittenError, as_source

#: How the name of a written module begins in this process; a number follows, since threads may write at once.
_WRITTEN = "_written_by_fedgsp_runs_"
_NUMBERS = itertools.count()
_ABSENT = object()


def check_unchanged(things: Iterable[Any], text: str) -> None:
    """Raises TaskError if a module with this text raises, or defines something else than these functions and classes.

    Functions are compared by their wrappers only.
    """
    compared = [one for one in things if isinstance(one, type) or own(one, "__wrapped__") is not None]
    if compared:
        written = _executed(text)
        for one in compared:
            (_check_class if isinstance(one, type) else _check_wrappers)(one, written[one.__name__])


def _executed(text: str) -> dict[str, Any]:
    """What a module with this text defines; raises TaskError if it raises."""
    module = types.ModuleType(f"{_WRITTEN}{next(_NUMBERS)}")
    sys.modules[module.__name__] = module  # data classes look for their module there
    try:
        exec(compile(text, "<the module written for the nodes>", "exec", dont_inherit=True), vars(module))
    except Exception as error:
        what = f"the module that is written for the nodes raises {type(error).__name__}: {error}"
        raise TaskError(what, "put the task into a module") from error
    finally:
        del sys.modules[module.__name__]
    return dict(vars(module))


def _check_class(live: type, written: type) -> None:
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
    if isinstance(value, types.FunctionType) or own(value, "__wrapped__") is not None:
        return f"function {' '.join(_layers(value, False))}"
    try:
        return as_source(value, lambda thing: str(answer(thing, "__qualname__") or answer(thing, "__name__")))
    except (NotWrittenError, RecursionError):
        return None


def _layers(value: Any, others: bool) -> Iterator[str]:
    """The names of a function and its wrappers, from the outermost; those of other modules only with `others`.

    torch itself wraps a method of an optimiser's class when that is used.
    """
    while (inner := own(value, "__wrapped__")) is not None:
        if others or str((own(value, "__globals__") or {}).get("__name__")).startswith((MAIN, _WRITTEN)):
            yield _name_of(value)
        value = inner
    yield _name_of(value)


def _name_of(value: Any) -> str:
    code = own(value, "__code__")
    return str(code.co_qualname if isinstance(code, types.CodeType) else type(value).__qualname__)
