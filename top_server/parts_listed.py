"""The parts that can be chosen, with their options, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.outgoing import OUTGOING
from fedgsp.parts import Part, Parts
from fedgsp.settings.fields import Described, described
from top_server.choosing import TABLES

#: Kind of part -> the parts of that kind.
LISTED: Mapping[str, Parts[Any]] = {**TABLES, OUTGOING.kind: OUTGOING}


def listed(kind: str = "") -> Iterator[str]:
    """Lines about the parts of one kind, or of all kinds. A part of a broken package has the reason as its help.

    Raises ConfigError for an unknown kind.
    """
    if kind and kind not in LISTED:
        raise ConfigError(f"there is no kind of part {kind!r}", f"known: {', '.join(LISTED)}")
    for name in [kind] if kind else sorted(LISTED):
        yield from _table(LISTED[name])


def _table(table: Parts[Part]) -> Iterator[str]:
    key = "NAME.KEY" if table is OUTGOING else "KEY"  # a run may have several steps
    yield f"{table.kind} (--{table.kind} NAME, --{table.kind}-option {key}=VALUE)"
    packages = table.packages()
    for name in table:
        whose = f" [{packages[name]}]" if name in packages else ""
        try:
            part = table[name]
        except ConfigError as error:
            yield f"  {name}{whose}: {error}"
        else:
            yield f"  {name}{whose}: {part.help}"
            yield from (f"      {_option(one)}" for one in described(part.options).values())


def _option(one: Described) -> str:
    value = getattr(one.default, "common", one.default)
    default = "" if value in (None, "", ()) else f"={str(value).lower()}"
    return f"{one.name}{default}: {one.help} ({one.wanted})"
