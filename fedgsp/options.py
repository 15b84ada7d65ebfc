"""Texts on a command line: options, given as repeated `key=value`, and ranges of clients."""

import difflib
import hashlib
import math
import re
from collections.abc import Iterable

from fedgsp.errors import ConfigError
from fedgsp.messages import MOST_CLIENTS_OF_NODE
from fedgsp.visible import visible


def options(flag: str, items: Iterable[str]) -> dict[str, str]:
    """The options in `items`, texts `key=value` of `flag`. ConfigError without `=` or key, or for a repeated key."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise ConfigError(f"{flag} {item!r} is not an option", f"write {flag} key=value")
        if key in found:
            raise ConfigError(f"{flag} {key} is given twice", "give it once")
        found[key] = value
    return found


def parse_clients(text: str) -> tuple[int, ...]:
    """Client ids from "3", "0-45", "0-3,7,9-12" or "1-45/4" (every fourth), ascending; raises ConfigError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*(?:/\s*([0-9]+)\s*)?)?", part, re.ASCII)
        if not match:
            raise ConfigError(
                f"--clients {text!r} has {part.strip()!r}", "write ids and ranges, for example 0-3,7,9-12"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not step:
            raise ConfigError(f"--clients has the step 0 in {part.strip()}", "write 1 or more behind the slash")
        if first > last:
            raise ConfigError(f"--clients has the reversed range {part.strip()}", f"write {last}-{first}")
        if (last - first) // step >= MOST_CLIENTS_OF_NODE:
            raise ConfigError(
                f"--clients has the range {part.strip()}", f"a node hosts at most {MOST_CLIENTS_OF_NODE:,} clients"
            )
        ids = range(first, last + 1, step)
        if twice := found.intersection(ids):
            raise ConfigError(f"--clients names client {min(twice)} twice", "name each client once")
        found.update(ids)
    return tuple(sorted(found))


def clients_text(ids: range) -> str:
    """The inverse of `parse_clients` for a range of ids, which is not empty."""
    return f"{ids[0]}-{ids[-1]}" + (f"/{ids.step}" if ids.step > 1 and len(ids) > 1 else "")


def suggestion(wrong: str, known: Iterable[str], lead: str = "known:") -> str:
    """A remedy for a wrong name: the most similar known name, if there is one, and all known names."""
    names = tuple(known)
    listed = f"{lead} {', '.join(names) or 'none'}"
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"did you mean {close[0]!r}? {listed[0].upper()}{listed[1:]}" if close else listed


#: Texts for truth values, in lower case.
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def truth(text: str) -> bool:
    """The truth value that a text stands for; ValueError if it is none of `_BOOLS`, in any case."""
    found = _BOOLS.get(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return found


#: Most characters of an option that are sent. Of a longer text, the beginning and a digest are sent.
MOST_LENGTH = 200
_NONE = ("", "none")


def shortened(text: str) -> str:
    """The text as it is sent, without control characters: at most `MOST_LENGTH` characters.

    It is different for different texts, but for spaces around them, and for a control character and its escape.
    Sent once more, it stays as it is.
    """
    text = visible(text.strip())
    if len(text) <= MOST_LENGTH:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return f"{text[: MOST_LENGTH - len(digest) - 3]}...{digest}"


def same(one: str, other: str) -> bool:
    """Whether two texts stand for the same value, as `1e-1` and `0.1` do.

    So do `yes` and `true`, an empty text and `none`, and two texts for NaN.
    """
    one, other = (shortened(text) for text in (one, other))
    if one.lower() in _NONE and other.lower() in _NONE:
        return True
    if one.lower() in _BOOLS and other.lower() in _BOOLS:
        return truth(one) == truth(other)
    try:
        numbers = float(one), float(other)
    except ValueError:
        return one == other
    return numbers[0] == numbers[1] or all(map(math.isnan, numbers))  # NaN is not equal to itself
