"""Writes values as source that makes equal ones: plain values, and small objects of Python, numpy and torch."""

from __future__ import annotations

import enum
import functools
import logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any, TypeAlias

import numpy as np

from fedgsp.errors import ConfigError

#: A module, class or function -> what the source calls it; raises NotWrittenError if the source cannot have it.
Refer: TypeAlias = Callable[[Any], str]
#: Characters of a wrong value in an error.
_MOST_SHOWN = 200


def shown(value: Any) -> str:
    """A wrong value in an error."""
    return f"{repr(value)[:_MOST_SHOWN]} ({type(value).__name__})"


def directory_of(value: Any, name: str) -> Path:
    """A directory that a caller names; ConfigError, with the name of the parameter, for what cannot be one."""
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise ConfigError(f"`{name}` is {shown(value)}", "give the path of a directory")
    return Path(value)


class NotWrittenError(Exception):
    """A value that cannot be written as source, perhaps because of another one that it holds."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"{value!r} cannot be written as source")
        self.value = value


def is_plain(value: Any) -> bool:
    """Whether a value is of a type that can be written as source, if what it holds can be."""
    return _writer(value) is not None


def as_source(value: Any, refer: Refer) -> str:
    """A value as source, which names modules, classes and functions only as `refer` does; raises NotWrittenError."""
    if (write := _writer(value)) is None:
        raise NotWrittenError(value)
    return write(value, refer)


def _writer(value: Any) -> Callable[[Any, Refer], str] | None:
    # A subclass of another type, such as a list, may hold more than a value of that type.
    kind = next((base for base in _BASES if isinstance(value, base)), type(value))
    return _WRITERS.get(f"{kind.__module__}.{kind.__qualname__}")


def _listed(values: Iterable[Any], refer: Refer) -> str:
    return ", ".join(as_source(one, refer) for one in values)


def _called(kind: Any, values: Iterable[Any], refer: Refer) -> str:
    return f"{refer(kind)}({_listed(values, refer)})"


def _literal(value: Any, _: Refer) -> str:
    return repr(value)


def _float(value: float, refer: Refer) -> str:
    text = repr(value)
    return f"{refer(float)}({text!r})" if text in ("nan", "inf", "-inf") else text


def _dict(value: Mapping[Any, Any], refer: Refer) -> str:
    return "{" + ", ".join(f"{as_source(key, refer)}: {as_source(one, refer)}" for key, one in value.items()) + "}"


def _set(value: Iterable[Any], refer: Refer) -> str:
    return f"{refer(type(value))}([{_listed(sorted(value, key=repr), refer)}])"


def _member(value: enum.Enum, refer: Refer) -> str:
    name = value.name
    if type(value).__members__.get(name) is not value:  # several flags together
        raise NotWrittenError(value)
    return f"{refer(type(value))}[{name!r}]"


def _number_of_numpy(value: np.generic, refer: Refer) -> str:
    plain = value.item()
    if type(plain) not in (bool, int, float, complex):  # a date, or more digits than a float has
        raise NotWrittenError(value)
    return f"{refer(np)}.{type(value).__name__}({as_source(plain, refer)})"


def _partial(value: functools.partial[Any], refer: Refer) -> str:
    given = [as_source(one, refer) for one in value.args]
    named = [f"{name}={as_source(one, refer)}" for name, one in value.keywords.items()]
    return f"{refer(functools.partial)}({', '.join([refer(value.func), *given, *named])})"


def _method(value: MethodType, refer: Refer) -> str:
    """A method of a class itself, such as the `apply` of a function of torch."""
    kind, name = value.__self__, value.__name__
    if not isinstance(kind, type) or getattr(kind, name, None) != value:
        raise NotWrittenError(value)
    return f"{refer(kind)}.{name}"


def _pattern(value: re.Pattern[Any], refer: Refer) -> str:
    return f"{refer(re)}.compile({value.pattern!r}, {value.flags & ~re.DEBUG:d})"


def _logger(value: logging.Logger, refer: Refer) -> str:
    """A logger by its name: what it records, and where, has no influence on what nodes train."""
    if logging.getLogger(value.name) is not value:
        raise NotWrittenError(value)
    return f"{refer(logging)}.getLogger({value.name!r})"


#: Classes whose values are always of subclasses.
_BASES = (pathlib.PurePath, enum.Enum, np.generic, logging.Logger)
#: Type, by module and name because torch need not be imported -> how its values are written.
_WRITERS: Mapping[str, Callable[[Any, Refer], str]] = {
    **{f"builtins.{name}": _literal for name in ("str", "int", "bool", "bytes", "NoneType", "ellipsis")},
    "builtins.float": _float,
    "builtins.complex": lambda value, refer: _called(complex, (value.real, value.imag), refer),
    "builtins.list": lambda value, refer: f"[{_listed(value, refer)}]",
    "builtins.tuple": lambda value, refer: f"({_listed(value, refer)}{',' if len(value) == 1 else ''})",
    "builtins.dict": _dict,
    "builtins.set": _set,
    "builtins.frozenset": _set,
    "builtins.range": lambda value, refer: _called(range, (value.start, value.stop, value.step), refer),
    "builtins.slice": lambda value, refer: _called(slice, (value.start, value.stop, value.step), refer),
    "pathlib.PurePath": lambda value, refer: f"{refer(pathlib)}.Path({str(pathlib.Path(value).absolute())!r})",
    "enum.Enum": _member,
    "functools.partial": _partial,
    "builtins.method": _method,
    "re.Pattern": _pattern,
    "logging.Logger": _logger,
    "numpy.generic": _number_of_numpy,
    "torch.dtype": lambda value, refer: f"{refer(sys.modules['torch'])}.{str(value).removeprefix('torch.')}",
    "torch.device": lambda value, refer: f"{refer(sys.modules['torch'])}.device({str(value)!r})",
}
