"""Whether two compiled functions do the same, wherever their sources stand."""

from __future__ import annotations

import ast
import dis
import inspect
from bisect import bisect_left
from collections.abc import Iterator
from types import CodeType
from typing import Any

_FUTURE = annotations.compiler_flag
#: The flags that say how a function is called, and what it returns.
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
#: How `module.function()` is compiled depends on an import in the same text, which a notebook has in another cell.
_LEFT_OUT = ("CACHE", "EXTENDED_ARG", "PUSH_NULL")
_SAME = {"LOAD_METHOD": "LOAD_ATTR"}


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """All functions, and bodies of classes, in a code."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from codes_in(inner)


def compiled_alone(text: str) -> dict[tuple[str, int], CodeType]:
    """Name and first line -> the code of each function, with every statement compiled alone, as notebooks do it."""
    found: dict[tuple[str, int], CodeType] = {}
    tree = ast.parse(text)
    flags = _FUTURE if any(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body) else 0
    for one in tree.body:
        statement = compile(ast.Module([one], []), "<alone>", "exec", flags, dont_inherit=True)
        found |= {(code.co_qualname, code.co_firstlineno): code for code in codes_in(statement)}
    return found


def is_of_future(code: CodeType) -> bool:
    """Whether annotations are texts in this code, by `from __future__ import annotations`."""
    return bool(code.co_flags & _FUTURE)


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same; also true if that cannot be said."""
    # A function makes the annotations of those inside it, which are texts in one of the two only.
    if is_of_future(one) != is_of_future(other) and any(isinstance(held, CodeType) for held in one.co_consts):
        return True
    return _key(one) == _key(other)


def _key(code: CodeType) -> tuple[Any, ...]:
    """All that a code does, without the places of its lines and without the names of the scopes around it."""
    read: Any = dis.Bytecode(code)
    steps: list[dis.Instruction] = [one for one in read if one.opname not in _LEFT_OUT]
    places = [one.offset for one in steps]
    values = [_value(one, code, places) for one in steps]
    for number, one in enumerate(steps[1:]):
        if one.opname == "STORE_NAME" and one.argval == "__firstlineno__":  # of a class, since Python 3.13
            values[number] = None
    return (
        [(_SAME.get(one.opname, one.opname), value) for one, value in zip(steps, values, strict=True)],
        [
            (*(bisect_left(places, place) for place in (one.start, one.end, one.target)), one.depth, one.lasti)
            for one in read.exception_entries
        ],
        code.co_flags & _FLAGS,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        inspect.getargs(code),
    )


def _value(step: dis.Instruction, code: CodeType, places: list[int]) -> Any:
    if step.opcode in dis.hasconst:
        return _constant(code.co_consts[step.arg or 0], code)
    jumps = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
    return bisect_left(places, step.argval) if jumps else step.argval


def _constant(value: Any, code: CodeType) -> tuple[Any, ...]:
    """A constant of a code, so that values of different types differ, such as 1 and True."""
    if isinstance(value, CodeType):
        return CodeType, value.co_name, _key(value)
    if isinstance(value, tuple):
        return tuple, *(_constant(one, code) for one in value)
    if isinstance(value, frozenset):
        return frozenset, frozenset(_constant(one, code) for one in value)
    if isinstance(value, float | complex):
        return type(value), repr(value)  # 0.0 equals -0.0, and no NaN equals another one
    if isinstance(value, str) and value == code.co_qualname:
        return str, code.co_name  # of a class, which may stand in a function here and in none there
    return type(value), value
