"""What every event of a run is: a frozen dataclass that is a line of events.jsonl, and can be read back from it."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

from fedgsp.files import MOST_LINE

#: The value of a field that an event may lack. Such a field is not written.
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT", "__bool__": lambda _: False})()


def told(text: str, *, default: Any = dataclasses.MISSING) -> Any:
    """A field of an event, with a text for docs/events.md. A field without one is an annotation alone."""
    return dataclasses.field(default=default, metadata={"text": text})


class MayLack(NamedTuple):
    """A field that is left out of a line of so many bytes or more; a dot leads to a field within a field."""

    field: str
    bytes: int = MOST_LINE


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(told,))
class Event:
    """Something that happened in a run. Every subclass is a frozen dataclass with keyword arguments."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    #: Fields with a value for each client that a long line lacks, in this order. They have the default ABSENT.
    may_lack: ClassVar[tuple[MayLack, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def kind(cls) -> str:
        """The kind as it stands in events.jsonl."""
        return re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower()

    @property
    def fields(self) -> dict[str, Any]:
        """Name -> value of the fields. Fields that were not given (value ABSENT) are left out; None stays."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not ABSENT}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Self:
        """The event of a line of events.jsonl; KeyError if the line lacks a field."""
        fields = dataclasses.fields(cls)
        if lacking := [one.name for one in fields if one.default is dataclasses.MISSING and one.name not in line]:
            raise KeyError(f"{cls.kind()} has no {', '.join(lacking)}")
        return cls(**{field.name: line[field.name] for field in fields if field.name in line})


class RoundEvent(Event):
    """An event of one round."""

    round: int


class GroupEvent(RoundEvent):
    """An event of one group of a round."""

    group: int
