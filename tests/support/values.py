"""Hypothesis strategies for every kind of value that processes exchange."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeGuard

from hypothesis import strategies as st

from fedgsp import messages


def is_value(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


#: All kinds of values, by name.
KINDS: dict[str, type] = {
    name: kind for name, kind in vars(messages).items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
#: Fields that are 32 bits wide on the wire.
_NARROW = {"round", "group", "position", "attempt", "protocol", "num_classes", "local_epochs", "batch_size"} | {
    "steps",
    "exchange",
    "fold",
    "accumulate",
    "judge_every",
    "patience",
    "exchanges",
}


@functools.cache
def values_of(kind: type) -> st.SearchStrategy[Any]:
    """Values of one kind, with fields of any content that the wire can carry."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: _values(hints[field.name], field.name) for field in dataclasses.fields(kind)}
    return st.builds(kind, **fields)


def _values(hint: Any, name: str) -> st.SearchStrategy[Any]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return st.one_of(*(_values(part, name) for part in parts))
    if origin is tuple:
        return st.lists(_values(parts[0], name), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(_values(parts[0], name), _values(parts[1], name), max_size=3)
    if dataclasses.is_dataclass(hint):
        return st.deferred(lambda: values_of(typing.cast("type", hint)))
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    if hint is int:
        return st.integers(0, 2 ** (32 if name in _NARROW else 64) - 1)
    return _PLAIN[hint]


_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    types.NoneType: st.none(),
    bool: st.booleans(),
    str: st.text(max_size=10),
    bytes: st.binary(max_size=40),
    float: st.floats(allow_nan=False),
}
