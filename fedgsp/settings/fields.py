"""One description for each setting and each option: its type, default, bounds and help.

A description is a field of a frozen dataclass, made by `setting`. Flags, the TOML file, checks, `--help` and the
reference page are all made from it.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from fedgsp.errors import ConfigError
from fedgsp.options import suggestion, truth

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")

#: Largest whole number that an option may have, unless its description says otherwise: it fits every message.
MOST_WHOLE = 2**31 - 1
_NAMES: Mapping[type, str] = {bool: "true or false", int: "a whole number", str: "text", Path: "a path"}


def setting(
    default: Any,
    help: str,
    *,
    name: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    **more: Any,
) -> Any:
    """A field of a dataclass of settings or options.

    `name` is the written name where it differs from the field's, as for `lambda`. `least` and `most` are part of the
    allowed range, `above` and `below` are not. `more` is for one reader alone, such as `panel` for `--help`.
    """
    metadata = {
        "help": help,
        "name": name,
        "choices": choices,
        "metavar": metavar,
        "rules": {"least": least, "above": above, "most": most, "below": below},
        **more,
    }
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class OptionError(ValueError):
    """The text of an option does not stand for one of its possible values."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"option {name} is {text!r}")
        self.name = name
        self.text = text


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """The description of one setting or option."""

    #: As people write it.
    name: str
    #: As Python code names it.
    field: str
    #: bool, int, float, str, Path, dict, tuple (of texts); a class with a class method `parse(text)`, which raises
    #: ValueError or ConfigError; or a class with a class method `parse_all(described, texts)`, for options of single
    #: clients.
    type: Any
    #: Whether None is a value: the setting was not given, or there is no limit.
    optional: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    metavar: str | None
    #: Bounds by name: least, above, most, below; None where there is no such bound.
    rules: Mapping[str, float | None]
    metadata: Mapping[str, Any]

    @property
    def written(self) -> tuple[str, ...]:
        """How people write it: its name, and the form for single clients if it has one."""
        return (self.name, f"{self.name}.ID") if hasattr(self.type, "parse_all") else (self.name,)

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = {"least": "of at least", "above": "above", "most": "of at most", "below": "below"}
        bounds = [f"{words[rule]} {bound:g}" for rule, bound in self.rules.items() if bound is not None]
        number = self.type is float or hasattr(self.type, "parse_all")
        return " ".join([_NAMES.get(self.type, "a number" if number else "text"), " and ".join(bounds)]).strip()

    def parse(self, text: str) -> Any:
        """The value that a text stands for; raises OptionError if it stands for none."""
        try:
            value = truth(text) if self.type is bool else getattr(self.type, "parse", self.type)(text)
        except ValueError:
            raise OptionError(self.name, text) from None
        if not self.allows(value):
            raise OptionError(self.name, text)
        return value

    def allows(self, value: Any) -> bool:
        """Whether a value of the right type is within the bounds and among the choices."""
        if self.choices:
            return str(value) in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        least, above, most, below = (self.rules[rule] for rule in ("least", "above", "most", "below"))
        return (
            (isinstance(value, int) or math.isfinite(value))  # a large int is no float
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
            and (below is None or value < below)
            and (most is not None or not isinstance(value, int) or value <= MOST_WHOLE)
        )


def described(kind: type[Any]) -> Mapping[str, Described]:
    """The descriptions of a dataclass of settings or options, by field: its own first, then inherited ones."""
    known: Any = kind  # mypy takes the hash of the instances for that of the class
    return _described(known)


@functools.cache
def _described(kind: Any) -> Mapping[str, Described]:
    hints = get_type_hints(kind)
    found = {}
    # Its own fields first, then those that it has from a class of shared settings.
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.name not in kind.__annotations__):
        annotation = hints[field.name]
        optional = isinstance(annotation, types.UnionType)
        if optional:
            annotation = next(part for part in get_args(annotation) if part is not types.NoneType)
        data = field.metadata
        found[field.name] = Described(
            name=data["name"] or field.name,
            field=field.name,
            type=get_origin(annotation) or annotation,
            optional=optional,
            default=field.default_factory() if callable(field.default_factory) else field.default,
            help=data["help"],
            choices=data["choices"],
            metavar=data["metavar"],
            rules=data["rules"],
            metadata=data,
        )
    return types.MappingProxyType(found)


def read_options(kind: type[T], whose: str, given: Mapping[str, str]) -> T:
    """The options of one part as its dataclass, from texts.

    `whose` names the part in errors, such as "grouping hcct". A type with a class method `parse_all` reads several
    texts: those of NAME and of NAME.ID for single clients. Raises ConfigError for an unknown name or a wrong value.
    """
    known = {one.name: one for one in described(kind).values()}
    texts: dict[str, dict[str, str]] = {}
    for name, text in given.items():
        base, dot, client = name.partition(".")
        one = known.get(base)
        if one is None or (dot and not (hasattr(one.type, "parse_all") and client == str_of_client(client))):
            raise ConfigError(
                f"{whose} has no option {name!r}",
                suggestion(name, (way for each in known.values() for way in each.written), "its options are"),
            )
        texts.setdefault(base, {})[client] = text
    values = {}
    for name, found in texts.items():
        one = known[name]
        try:
            several = hasattr(one.type, "parse_all")
            values[one.field] = one.type.parse_all(one, found) if several else one.parse(found[""])
        except OptionError as error:
            raise ConfigError(f"{whose}: option {error.name} is {error.text!r}", f"give {one.wanted}") from None
    try:
        return kind(**values)
    except ValueError as error:  # options that do not go together
        raise ConfigError(f"{whose}: {error}", "change one of these options") from None


def str_of_client(text: str) -> str | None:
    """The text of a client's number as people write it; None if the text is no such number."""
    return str(int(text)) if text.isdecimal() else None


def at_absolute_paths(settings: D) -> D:
    """The settings with paths that mean the same when the working directory changes."""
    values = {one.name: getattr(settings, one.name) for one in dataclasses.fields(settings)}
    paths = {name: value.absolute() for name, value in values.items() if isinstance(value, Path)}
    return dataclasses.replace(settings, **paths)


def values_of(options: Any) -> dict[str, Any]:
    """The values of a dataclass of settings or options, by the names that people write."""
    return {one.name: getattr(options, one.field) for one in described(type(options)).values()}
