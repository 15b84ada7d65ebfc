"""Whether a value that was read from JSON has the type by which code declares it, also deep within it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

#: Ids, rounds, samples and bytes, which is all that a run counts, are from 0 to this number.
MOST = 1 << 60
_COLLECTIONS = (list, set, frozenset, deque)


@cache
def kinds_of(kind: Any) -> Mapping[str, Any]:
    """Field -> its type; empty for a class of others whose types only a type checker can find."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value is of a type: a class, or one with arguments. JSON knows lists alone, so that they are tuples.

    What is neither, such as an array, is whatever it is.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(has_type(value, one) for one in inner)
    if origin is tuple:
        wanted = inner[:1] * len(value) if inner[1:] == (Ellipsis,) and isinstance(value, list | tuple) else inner
        return isinstance(value, list | tuple) and _each(value, wanted)
    if origin in _COLLECTIONS:
        return isinstance(value, origin) and all(has_type(one, inner[0]) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_each(pair, inner) for pair in value.items())
    return kind is Any or not isinstance(kind, type) or _is_plain(value, kind)


def _is_plain(value: Any, kind: type) -> bool:
    if kind is int:
        return type(value) is int and 0 <= value <= MOST
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, kind):
        return False
    names = [one.name for one in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", ())
    kinds = kinds_of(kind) if names else {}
    return all(has_type(getattr(value, name), kinds[name]) for name in names if name in kinds)


def _each(values: Any, kinds: Any) -> bool:
    return len(values) == len(kinds) and all(map(has_type, values, kinds))
