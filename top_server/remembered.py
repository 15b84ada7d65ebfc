"""What a part of a run remembers by client or by cluster, and how that is saved with the run, as JSON."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any


def _unchanged(value: Any) -> Any:
    return value


def remembered(read: Callable[[Any], Any] = _unchanged, write: Callable[[Any], Any] = _unchanged) -> Any:
    """A field of a dataclass: a dictionary with numbers as keys, empty at first, saved under the name of the field.

    `write` makes JSON of a value, and `read` is its inverse.
    """
    return field(init=False, default_factory=dict, metadata={"read": read, "write": write})


def saved_of(part: Any) -> dict[str, Any]:
    """The remembered dictionaries of a part, by the names of their fields without "_"."""
    saved = {}
    for one in fields(part):
        if "write" in one.metadata:
            found = getattr(part, one.name).items()
            saved[one.name.removeprefix("_")] = {number: one.metadata["write"](value) for number, value in found}
    return saved


def restore_of(part: Any, saved: Mapping[str, Any]) -> None:
    """Gives a part the dictionaries that were saved, whose keys are text in JSON; raises KeyError or ValueError."""
    for one in fields(part):
        if "read" in one.metadata:
            found = saved[one.name.removeprefix("_")].items()
            setattr(part, one.name, {int(number): one.metadata["read"](value) for number, value in found})
