"""Events for tests that care about a few fields only."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from top_server.record.events import KINDS
from top_server.record.events.base import Event

E = TypeVar("E", bound=Event)
_BLANKS: dict[str, Any] = {"int": 0, "float": 0.0, "str": ""}


def some(kind: type[E], **given: Any) -> E:
    """An event of a kind, whose other fields are blank."""
    needed = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    return kind(**{field.name: _BLANKS.get(str(field.type)) for field in needed} | given)


def named(kind: str, **given: Any) -> Event:
    """The same, by the kind as it stands in events.jsonl."""
    return some(KINDS[kind], **given)
