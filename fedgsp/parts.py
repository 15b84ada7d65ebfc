"""Parts that schemes are made of: built in, or added by an installed package through Python entry points.

Each kind of part (grouping, profile, merge, ...) has one table. A package adds a part to it by an entry point of group
`fedgsp.KINDs`, such as `fedgsp.groupings`; the entry point's name is the part's name. What the entry point names is
imported only when the part is used, so that `--help` stays quick.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fedgsp.errors import ConfigError
from fedgsp.options import suggestion

T = TypeVar("T")


class Parts(Mapping[str, T], Generic[T]):
    """The parts of one kind by name: those of this package first, then those of installed packages by name."""

    def __init__(self, kind: str, built_in: Mapping[str, T], expected: type[Any]) -> None:
        self.kind = kind
        self._built_in = built_in
        self._expected = expected

    @property
    def group(self) -> str:
        """The group of entry points that adds parts of this kind."""
        return f"fedgsp.{self.kind}s"

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from sorted(self._outside().keys() - self._built_in.keys())

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._outside()

    def __getitem__(self, name: str) -> T:
        """The part of that name; raises ConfigError if there is none, or if its package is broken."""
        if name in self._built_in:
            return self._built_in[name]
        found = self._outside().get(name)
        if found is None:
            raise ConfigError(f"there is no {self.kind} {name!r}", suggestion(name, self))
        return self._load(found)

    def origin(self, name: str) -> str:
        """The installed package that adds a part, with its version; empty for a part of this package."""
        found = None if name in self._built_in else self._outside().get(name)
        return f"{found.dist.name} {found.dist.version}" if found is not None and found.dist is not None else ""

    def _outside(self) -> Mapping[str, EntryPoint]:
        return _entry_points(self.group)

    def _load(self, found: EntryPoint) -> T:
        part = load(f"{self.kind} {found.name}", found.value, self.origin(found.name))
        if not isinstance(part, self._expected):
            raise ConfigError(
                f"{self.kind} {found.name} of package {self.origin(found.name)} is a {type(part).__name__}",
                f"let the entry point {found.value} name a {self._expected.__name__}",
            )
        return part  # type: ignore[no-any-return]


@functools.cache
def load(what: str, value: str, origin: str = "") -> Any:
    """The object named by "package.module:attribute"; raises ConfigError that says what of which package is broken."""
    module, _, attribute = value.partition(":")
    whose = f" of package {origin}" if origin else ""
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except Exception as error:  # code of another package may raise anything
        raise ConfigError(
            f"{what}{whose} cannot be loaded from {value}: {type(error).__name__}: {error}",
            "mend or update that package, or uninstall it",
        ) from error
    return found


@functools.cache
def _entry_points(group: str) -> Mapping[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise ConfigError(
                f"two installed packages have an entry point {point.name!r} of {group}: {other.value}, {point.value}",
                "uninstall one of them",
            )
    return found
