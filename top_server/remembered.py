"""What a part of a run remembers from round to round, and how that is saved with the run, as JSON."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

from top_server.typed import has_type, kinds_of

#: The modules of this package.
_OWN = f"{__name__.partition('.')[0]}."


def _unchanged(value: Any) -> Any:
    return value


def kept(
    factory: Callable[[], Any], write: Callable[[Any], Any], read: Callable[[Any], Any], init: bool = True
) -> Any:
    """A field of a dataclass: its value before round 1, and functions that convert a value to JSON and back."""
    return field(init=init, default_factory=factory, metadata={"read": read, "write": write})


def remembered(
    read: Callable[[Any], Any] = _unchanged, write: Callable[[Any], Any] = _unchanged, init: bool = False
) -> Any:
    """A field of a dataclass: a dictionary with numbers as keys, of clients or clusters, which JSON turns into text.

    `write` makes JSON of one of its values, and `read` is its inverse.
    """
    return kept(
        dict,
        lambda values: {number: write(value) for number, value in values.items()},
        lambda saved: {int(number): read(value) for number, value in saved.items()},
        init,
    )


def saved_of(part: Any) -> dict[str, Any]:
    """The saved fields of a part as JSON, by their names without "_"."""
    return {
        one.name.removeprefix("_"): one.metadata["write"](getattr(part, one.name))
        for one in fields(part)
        if "write" in one.metadata
    }


def restore_of(part: Any, saved: Mapping[str, Any]) -> None:
    """Gives a part what was saved of it; raises KeyError, TypeError or ValueError if a value is missing or damaged.

    A value of another type than that of its field is damaged: it would end the run in some later round. The parts of
    other packages are not held to their annotations, which may be loose.
    """
    kinds = kinds_of(part.__class__) if part.__class__.__module__.startswith(_OWN) else {}
    for one in fields(part):
        if "read" in one.metadata:
            name = one.name.removeprefix("_")
            value = one.metadata["read"](saved[name])
            if not has_type(value, kinds.get(one.name)):
                raise TypeError(f"{name} has a value that it cannot have")
            setattr(part, one.name, value)
