"""Settings as TOML: `load` reads a file, and `dump` makes a text that `load` reads as equal settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from fedgsp.errors import ConfigError, reason_of
from fedgsp.files import MOST_OF_SETTINGS, parse_toml, read_text
from fedgsp.options import suggestion
from fedgsp.settings.fields import Described, described

T = TypeVar("T")

#: Numbers of TOML have 64 bits. Python reads longer ones, and cannot write or convert some of them.
_TOO_LARGE = 2**64
#: Most characters of a wrong value in an error.
_MOST_SHOWN = 200
_WANTED: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: 'text, in "quotes"',
    Path: 'a path, in "quotes"',
    tuple: 'a list of texts, ["one", "two"]',
    dict: "a table of options, each text or a number",
}


def load(kind: type[T], path: Path) -> T:
    """The settings in a file, of the right types but not yet checked; ConfigError names the file and the key."""
    return parse(kind, text_of(path), path)


def text_of(path: Path) -> str:
    """The text of a file with settings; ConfigError names the file if it cannot be read."""
    try:
        return read_text(path, MOST_OF_SETTINGS)
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: there is no such file", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {reason_of(error)}", "give a TOML file in UTF-8") from None


def parse(kind: type[T], text: str, path: Path) -> T:
    """The settings in the text of a file; `path` is for errors only. Raises ConfigError."""
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}", "correct that place") from None
    known = described(kind)
    for key in document:
        if key not in known:
            raise ConfigError(f"--config {path}: there is no setting {key!r}", suggestion(key, known))
    return kind(**{key: _typed(path, known[key], value) for key, value in document.items()})


def dump(settings: Any) -> str:
    """The settings as the text of a TOML file. Settings that are None are left out."""
    values = {name: getattr(settings, name) for name in described(type(settings))}
    return tomli_w.dumps(
        {name: str(value) if isinstance(value, Path) else value for name, value in values.items() if value is not None}
    )


def _typed(path: Path, one: Described, value: Any) -> Any:
    wanted = one.type
    numbers = value.values() if isinstance(value, dict) else (value,)
    if any(isinstance(number, int) and abs(number) >= _TOO_LARGE for number in numbers):
        raise ConfigError(f"--config {path}: {one.field} has a number of more than 64 bits", "give a smaller number")
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is Path and isinstance(value, str):
        return Path(value)
    if wanted is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if wanted is dict and isinstance(value, dict) and all(isinstance(v, str | int | float) for v in value.values()):
        # TOML knows numbers and booleans. Options are text: the text that the same option would have as a flag.
        return {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in value.items()}
    if type(value) is not wanted or wanted in (dict, tuple):
        raise ConfigError(f"--config {path}: {one.field} is {_shown(value)}", f"give {_WANTED[wanted]}")
    return value


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_MOST_SHOWN]
    except ValueError:  # a number inside has more digits than Python writes
        return f"a {type(value).__name__}"
