"""Options on a command line: repeated `key=value`."""

from __future__ import annotations

import hashlib
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


#: How a truth value may be written.
BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


#: Characters of an option's text that travel; of a longer one the beginning and a digest do.
MOST_LENGTH = 200
_NONE = ("", "none")


def shortened(text: str) -> str:
    """A text that travels, and is another one for every other text."""
    if len(text) <= MOST_LENGTH:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return f"{text[: MOST_LENGTH - len(digest) - 3]}...{digest}"


def same(one: str, other: str) -> bool:
    """Whether two texts give an option the same value: `1e-1` is 0.1, `yes` is true, and nothing is none."""
    one, other = (shortened(text.strip()) for text in (one, other))
    if one.lower() in _NONE and other.lower() in _NONE:
        return True
    if one.lower() in BOOLS and other.lower() in BOOLS:
        return BOOLS[one.lower()] == BOOLS[other.lower()]
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other
