"""The parts that can be chosen, with their options, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from fedgsp.errors import ConfigError
from fedgsp.parts import Part, Parts
from fedgsp.settings.fields import Described, described
from top_server.choosing import TABLES


def listed(kind: str = "") -> Iterator[str]:
    """Lines about the parts of one kind, or of all kinds. A part of a broken package has the reason as its help.

    Raises ConfigError for an unknown kind.
    """
    if kind and kind not in TABLES:
        raise ConfigError(f"there is no kind of part {kind!r}", f"known: {', '.join(TABLES)}")
    for name in [kind] if kind else sorted(TABLES):
        yield from _table(TABLES[name])


def _table(table: Parts[Part]) -> Iterator[str]:
    yield f"{table.kind} (--{table.kind} NAME, --{table.kind}-option KEY=VALUE)"
    packages = table.packages()
    for name in table:
        whose = f" [{packages[name]}]" if name in packages else ""
        try:
            part = table[name]
        except ConfigError as error:
            yield f"  {name}{whose}: {error}"
            continue
        yield f"  {name}{whose}: {part.help}"
        yield from (f"      {_option(one)}" for one in described(part.options).values())


def _option(one: Described) -> str:
    value = getattr(one.default, "common", one.default)
    default = "" if value in (None, "", ()) else f"={str(value).lower()}"
    return f"{one.name}{default}: {one.help} ({one.wanted})"
