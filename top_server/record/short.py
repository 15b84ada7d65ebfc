"""Keeps lines of a record shorter than any that readers refuse: long ones lack fields with a value for each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from top_server.record.events.base import MayLack
from top_server.record.history import to_line


class Short(NamedTuple):
    """A line that was made shorter, if it had to be."""

    line: dict[str, Any]
    #: Its text.
    text: str
    #: The fields that it lacks.
    left_out: tuple[str, ...]
    #: Bytes that the text would have with them.
    bytes: int


def short(line: dict[str, Any], may_lack: Iterable[MayLack]) -> Short:
    """The line, made by `plain`, without the first of these fields, as many as it takes."""
    text, left_out = to_line(line), list[str]()
    bytes_of_all = len(text)
    for one in may_lack:
        if len(text) >= one.bytes and (fewer := _without(line, one.field.split("."))) is not None:
            line, text = fewer, to_line(fewer)
            left_out.append(one.field)
    return Short(line, text, tuple(left_out), bytes_of_all)


def _without(line: Mapping[str, Any], path: list[str]) -> dict[str, Any] | None:
    """The line without a field; None if it has no such field."""
    name, *inner = path
    if line.get(name) is None:
        return None
    if not inner:
        return {key: value for key, value in line.items() if key != name}
    fewer = _without(line[name], inner)
    return None if fewer is None else {**line, name: fewer}
