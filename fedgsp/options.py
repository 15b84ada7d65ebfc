"""Options on a command line: repeated `key=value`."""

from __future__ import annotations

from collections.abc import Iterable

from fedgsp.errors import ConfigError


def options(flag: str, items: Iterable[str]) -> dict[str, str]:
    """Options given as repeated `key=value`; ConfigError for one without a key or a value, or given twice."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise ConfigError(f"{flag} {item!r} is not an option", f"write {flag} key=value")
        if key in found:
            raise ConfigError(f"{flag} {key} is given twice", "give it once")
        found[key] = value
    return found
