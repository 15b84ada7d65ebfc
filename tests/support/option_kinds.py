"""Options by the kind of part that reads them."""

from __future__ import annotations

from collections.abc import Mapping

from fedgsp.settings.fields import described
from top_server.choosing import TABLES


def by_kind(given: Mapping[str, str], *kinds: str) -> dict[str, dict[str, str]]:
    """The settings, such as `profile_option`, for options whose kinds are known by their names; looks in `kinds`."""
    found: dict[str, dict[str, str]] = {}
    for name, text in given.items():
        readers = [kind for kind in kinds or ("grouping", "profile", "merge") if _reads(kind, name.partition(".")[0])]
        assert readers, name
        for kind in readers:
            found.setdefault(f"{kind}_option", {})[name] = text
    return found


def _reads(kind: str, name: str) -> bool:
    parts = TABLES[kind].built_in.values()
    return any(name == one.name for part in parts for one in described(part.options).values())
