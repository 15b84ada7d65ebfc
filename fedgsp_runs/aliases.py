"""Writes type aliases, type variables, new types and named tuples as source."""

from __future__ import annotations

import collections
import types
import typing
from typing import Any, ForwardRef, NewType, ParamSpec, TypeVar, TypeVarTuple

from fedgsp_runs.attributes import answer
from fedgsp_runs.values import NotWrittenError, Refer, as_source

#: The attributes of all classes that `collections.namedtuple` makes.
_OF_NAMED_TUPLES = frozenset(vars(collections.namedtuple("_", ())))  # noqa: PYI024


def has_own_name(value: Any) -> bool:
    """Whether a value is made with its own name, by a call and not by a class statement."""
    return isinstance(value, TypeVar | ParamSpec | TypeVarTuple | NewType) or _is_named_tuple(value)


def _is_named_tuple(value: Any) -> bool:
    """Whether a class is one that `collections.namedtuple` has made, to which nothing was added."""
    fields = vars(value).get("_fields") if isinstance(value, type) and value.__bases__ == (tuple,) else None
    if not isinstance(fields, tuple) or any(str(one).startswith("_") for one in fields):
        return False
    return {*vars(value)} == {*_OF_NAMED_TUPLES, *fields}


def is_of_types(value: Any) -> bool:
    """Whether a value is a type that a call has made, or for annotations only, such as `int | None`."""
    return has_own_name(value) or typing.get_origin(value) is not None


def made(value: Any, refer: Refer) -> str:
    """A type or a value for annotations as source; raises NotWrittenError for what it has no source for."""
    if not has_own_name(value):
        return _alias(value, refer)
    given = [repr(value.__name__)]
    if isinstance(value, type) and issubclass(value, tuple):
        defaults = as_source([*answer(value, "_field_defaults").values()], refer)
        return f"{refer(collections)}.namedtuple({given[0]}, {[*vars(value)['_fields']]!r}, defaults={defaults})"
    if isinstance(value, NewType):
        given.append(_alias(value.__supertype__, refer))
    elif isinstance(value, TypeVar):
        given += [_alias(one, refer) for one in value.__constraints__]
        if value.__bound__ is not None:
            given.append(f"bound={_alias(value.__bound__, refer)}")
        given += [f"{one}=True" for one in ("covariant", "contravariant") if getattr(value, f"__{one}__")]
    return f"{refer(type(value))}({', '.join(given)})"


def _alias(value: Any, refer: Refer) -> str:
    if value is None or value is types.NoneType:
        return "None"
    if value is Ellipsis or isinstance(value, str):
        return repr(value)
    if isinstance(value, ForwardRef):
        return repr(value.__forward_arg__)
    if isinstance(value, list):  # the arguments of a Callable
        return f"[{_listed(value, refer)}]"
    origin = typing.get_origin(value)
    if origin is None:
        return refer(value)
    if getattr(value, "__unpacked__", False):
        raise NotWrittenError(value)
    parts = typing.get_args(value)
    if origin is types.UnionType:
        return f"({' | '.join(_alias(one, refer) for one in parts)})"
    if origin is typing.Literal:
        return f"{refer(origin)}[{', '.join(as_source(one, refer) for one in parts)}]"
    if origin is typing.Annotated:
        notes = ", ".join(as_source(one, refer) for one in parts[1:])
        return f"{refer(origin)}[{_alias(parts[0], refer)}, {notes}]"
    return f"{refer(origin)}[{_listed(parts, refer) or '()'}]"


def _listed(values: Any, refer: Refer) -> str:
    return ", ".join(_alias(one, refer) for one in values)
