"""Compiled functions."""

from __future__ import annotations

from types import CodeType

_FUTURE = annotations.compiler_flag


def is_of_future(code: CodeType) -> bool:
    """Whether annotations are texts in this code, by `from __future__ import annotations`."""
    return bool(code.co_flags & _FUTURE)
