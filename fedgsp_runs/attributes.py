"""Attributes of values of which nothing is known: some answer every name, such as a dictionary with `__getattr__`."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any


def own(value: Any, name: str) -> Any:
    """An attribute that a value has without the help of `__getattr__`; None if there is none."""
    with contextlib.suppress(Exception):  # a property may raise anything
        if inspect.getattr_static(value, name, None) is not None:
            return getattr(value, name)
    return None


def answer(value: Any, name: str) -> Any:
    """What a value answers to the name of an attribute; None if it raises."""
    with contextlib.suppress(Exception):
        return getattr(value, name)
    return None


def unwrapped(value: Any) -> Any:
    """The function or class inside all wrappers that `functools.wraps` has made."""
    seen = {id(value)}
    while (inner := own(value, "__wrapped__")) is not None and id(inner) not in seen:
        seen.add(id(inner))
        value = inner
    return value
