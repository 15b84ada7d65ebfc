"""The source of functions and classes of a notebook or a script."""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from fedgsp.errors import TaskError
from fedgsp_runs.attributes import own, unwrapped
from fedgsp_runs.codes import codes_in
from fedgsp_runs.scripts import cells, text_of

#: What Python itself keeps for generic functions and classes.
_OF_GENERICS = (".type_params", ".generic_base")
#: What Python itself keeps for the methods of a class.
_OF_CLASSES = ("__class__", "__classdict__")
_NOT_KNOWN = "execute the script again if it was edited, or put the task into a module"
#: Notebooks may wait at the top level of a cell.
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True)
class _Statement:
    """A statement that defines a function or a class."""

    #: The function, or the body of the class.
    code: CodeType
    #: The statement, so that it can be executed alone.
    text: str

    @property
    def is_class(self) -> bool:
        return not self.code.co_flags & inspect.CO_OPTIMIZED


def definition_of(thing: Any) -> str:
    """The source of a function or class; raises TaskError if nobody knows it."""
    inner = unwrapped(thing)
    try:
        return _of_class(inner).text if isinstance(inner, type) else _of_function(inner)
    except (OSError, TypeError):
        raise _unknown(thing) from None


def enclosed_by(thing: Any) -> list[str]:
    """The variables that a function or class uses of a function or class around it; its source does not have them."""
    inner = unwrapped(thing)
    code = _of_class(inner).code if isinstance(inner, type) else own(inner, "__code__")
    known = {*_OF_GENERICS, *(one.__name__ for one in getattr(inner, "__type_params__", ()))}
    known |= {*_OF_CLASSES} if isinstance(inner, type) else set()
    return [name for name in getattr(code, "co_freevars", ()) if name not in known]


def function_of(value: Any) -> Any:
    """The function that the attribute of a class has made its own, as a property has."""
    inner = next((one for name in ("fget", "func") if (one := own(value, name)) is not None), value)
    return unwrapped(inner)


def _unknown(thing: Any) -> TaskError:
    call = "write it as a class statement if a call makes it, " if isinstance(thing, type) else ""
    return TaskError(f"the source of {thing.__name__!r} is not known", f"{call}{_NOT_KNOWN}")


def _of_function(function: FunctionType) -> str:
    code = function.__code__
    text = text_of(code.co_filename)
    if not text:  # no file and no cell, but Python may know it otherwise
        return _alone(inspect.getsource(function).rstrip("\n").split("\n"))
    found = [one for one in _statements(text).get(code.co_qualname, ()) if not one.is_class]
    if not found:
        raise _unknown(function)
    here = [one for one in found if one.code.co_firstlineno == code.co_firstlineno]
    return (here or found)[-1].text


def _of_class(kind: type) -> _Statement:
    """The statement that has made a class; raises TaskError if several may have."""
    lines = _lines_of_methods(kind)
    found = [one for file in lines for one in _bodies(file, kind) if lines[file] & _lines(one.code)]
    if not found:  # none of its methods tells more
        with contextlib.suppress(OSError, TypeError):  # a class of a notebook has no file
            found = _bodies(inspect.getfile(kind), kind)
        found = found or next(filter(None, (_bodies(file, kind) for file in cells())), [])
        first = vars(kind).get("__firstlineno__")  # since Python 3.13
        found = [one for one in found if one.code.co_firstlineno == first] or found
    if not found:
        raise _unknown(kind)
    if len({one.text for one in found}) > 1:
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
        if isinstance(code, CodeType) and code.co_qualname == f"{kind.__qualname__}.{name}":
            found.setdefault(code.co_filename, set()).add(code.co_firstlineno)
    return found


def _lines(body: CodeType) -> set[int]:
    """The lines in which the methods of a class begin."""
    return {inner.co_firstlineno for inner in body.co_consts if isinstance(inner, CodeType)}


def _bodies(file: str, kind: type) -> list[_Statement]:
    """The class statements of a file, or of a cell, that have the name of a class."""
    return [one for one in _statements(text_of(file)).get(kind.__qualname__, ()) if one.is_class]


@lru_cache(maxsize=256)
def _statements(text: str) -> Mapping[str, list[_Statement]]:
    """The definitions in a text, by their names with those of the functions and classes around them."""
    found: dict[str, list[_Statement]] = {}
    with contextlib.suppress(SyntaxError, ValueError):  # a cell with commands of the notebook
        tree = compile(text, "<script>", "exec", ast.PyCF_ONLY_AST | _FLAGS, dont_inherit=True)
        rows, last = text.split("\n"), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min(one.lineno for one in [node, *node.decorator_list])
                last[node.name, first] = node.end_lineno
        for code in codes_in(compile(tree, "<script>", "exec", _FLAGS, dont_inherit=True)):
            place = code.co_name, code.co_firstlineno
            if place in last:
                statement = _Statement(code, _alone(rows[code.co_firstlineno - 1 : last[place]]))
                found.setdefault(code.co_qualname, []).append(statement)
    return found


def _alone(rows: list[str]) -> str:
    """A statement as it stands, even if it is indented: texts of several lines inside it keep their spaces."""
    indented = rows[0].lstrip("\f")[:1].isspace()  # Python counts no form feed, which may stand before a section
    return "\n".join(["if True:", *rows] if indented else rows)
