"""The source of functions and classes of a notebook or a script."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from fedgsp.errors import TaskError
from fedgsp_runs.attributes import own, unwrapped

#: What Python itself keeps for the methods of a class.
_OF_CLASSES = ("__class__", "__classdict__", ".type_params", ".generic_base")
_NOT_KNOWN = "put the task into a module"


def definition_of(thing: Any) -> str:
    """The source of a function or class; raises TaskError if nobody knows it."""
    inner = unwrapped(thing)
    try:
        return textwrap.dedent(_statement(inner)[1] if isinstance(inner, type) else inspect.getsource(inner))
    except (OSError, TypeError):
        raise TaskError(f"the source of {thing.__name__!r} is not known", _NOT_KNOWN) from None


def enclosed_by(thing: Any) -> list[str]:
    """The variables that a function or class uses of a function around it; its source does not have them."""
    inner = unwrapped(thing)
    code = _statement(inner)[0] if isinstance(inner, type) else own(inner, "__code__")
    known = {*_OF_CLASSES, *(one.__name__ for one in getattr(inner, "__type_params__", ()))}
    return [name for name in getattr(code, "co_freevars", ()) if name not in known]


def function_of(value: Any) -> Any:
    """The function that the attribute of a class has made its own, as a property has."""
    inner = next((one for name in ("fget", "func") if (one := own(value, name)) is not None), value)
    return unwrapped(inner)


def _statement(kind: type) -> tuple[types.CodeType, str]:
    """The body and the source of the statement that has made a class; raises TaskError if several may have."""
    lines = _lines_of_methods(kind)
    found = [one for file in lines for one in _statements(file, kind) if lines[file] & _lines(one[0])]
    if not found:  # none of its methods tells more
        with contextlib.suppress(OSError, TypeError):  # a class of a notebook has no file
            found = _statements(inspect.getfile(kind), kind)
        cells = [file for file in linecache.cache if "ipykernel" in file or file.startswith("<ipython-input")]
        found = found or next(filter(None, (_statements(file, kind) for file in reversed(cells))), [])
        first = vars(kind).get("__firstlineno__")  # since Python 3.13
        found = [one for one in found if one[0].co_firstlineno == first] or found
    if not found:
        raise TaskError(f"the source of {kind.__name__!r} is not known", _NOT_KNOWN)
    if len({text for _, text in found}) > 1:
        raise TaskError(
            f"the class {kind.__name__!r} is defined {len(found)} times, and it has no method that tells which"
            " definition is used",
            "give each of these classes a name of its own",
        )
    return found[-1]


def _lines_of_methods(kind: type) -> dict[str, set[int]]:
    """File -> the lines in which the methods of a class begin that its statement has made; the newest file first."""
    found: dict[str, set[int]] = {}
    for name, value in reversed([*vars(kind).items()]):
        code = own(function_of(value), "__code__")
        if isinstance(code, types.CodeType) and code.co_qualname == f"{kind.__qualname__}.{name}":
            found.setdefault(code.co_filename, set()).add(code.co_firstlineno)
    return found


def _statements(file: str, kind: type) -> list[tuple[types.CodeType, str]]:
    """The class statements of a file, or of a cell, that have the name of a class: the body and the source of each."""
    linecache.checkcache(file)
    lines = linecache.getlines(file, vars(sys.modules[kind.__module__]))
    with contextlib.suppress(SyntaxError, ValueError):  # a cell with commands of the notebook
        code = compile("".join(lines), file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        bodies = _bodies(code, kind.__qualname__)
        return [(body, "".join(inspect.getblock(lines[body.co_firstlineno - 1 :]))) for body in bodies]
    return []


def _bodies(code: types.CodeType, name: str) -> Iterator[types.CodeType]:
    """The bodies of the classes of this name in a module, and in the functions and classes of it."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if inner.co_qualname == name and not inner.co_flags & inspect.CO_OPTIMIZED:
                yield inner
            yield from _bodies(inner, name)


def _lines(body: types.CodeType) -> set[int]:
    """The lines in which the methods of a class begin."""
    return {inner.co_firstlineno for inner in body.co_consts if isinstance(inner, types.CodeType)}
