"""Reads the policy of a node: `--policy FILE` in TOML, and what `--allow KEY=VALUE` adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedgsp.errors import ConfigError, reason_of
from fedgsp.files import parse_toml, read_text
from fedgsp.options import suggestion
from fedgsp.owners import check_file
from fedgsp.settings.fields import Described, OptionError, described
from fedgsp.settings.policy import NO_POLICY, PANELS, UNLIMITED, Entries, Policy

#: A policy is a page of text; a larger file is none.
MOST_BYTES = 1 << 20


def policy_of(file: str | None, allow: Mapping[str, str]) -> Policy:
    """The policy of a node: that of the file, or the default one, with the keys in `allow` changed.

    A number in `allow` replaces the number of the key, and entries are added to the list of the key. Raises
    ConfigError that names the key, also if the list has the entries already.
    """
    if file == NO_POLICY:
        if allow:
            raise ConfigError(
                f"--policy {NO_POLICY} forbids nothing that --allow could allow", "leave out one of them"
            )
        return UNLIMITED
    values = _values(f"--policy {file}", _texts(file)) if file is not None else {}
    for key, value in _values("--allow", allow).items():
        if described(Policy)[key].metadata.get("only_in_file"):
            raise ConfigError(f"--allow {key} would forbid more", "write it into --policy FILE")
        before = values.get(key, getattr(Policy(), key))
        if isinstance(value, Entries) and all(map(before.covers, value)):
            # A reader of this flag could believe that the node allows nothing else.
            raise ConfigError(
                f"--allow {key}={allow[key]} allows nothing more: {key} of the policy is {', '.join(before)}",
                f"leave it out; to allow less, write {key} into --policy FILE",
            )
        values[key] = type(value)(dict.fromkeys((*before, *value))) if isinstance(value, Entries) else value
    return Policy(**values)


def dump(policy: Policy) -> str:
    """The policy as a commented TOML file that `policy_of` reads as an equal policy."""
    lines = []
    for panel in PANELS:
        lines.append(f"# --- {panel}\n")
        for name, one in described(Policy).items():
            if one.metadata["panel"] == panel:
                value = getattr(policy, name)
                lines.append(f"# {one.help}")
                lines.append(tomli_w.dumps({name: ", ".join(value) if isinstance(value, Entries) else value}))
    return "\n".join(lines)


def _texts(file: str) -> dict[str, str]:
    """The values in a file as texts by key, each of a type that its key takes."""
    check_file("--policy", Path(file))
    try:
        document = parse_toml(read_text(Path(file), MOST_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--policy {file} cannot be read: {reason_of(error)}", "give a TOML file in UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"--policy {file} is not TOML: {error}", "correct that place") from None
    known = described(Policy)
    return {key: _text(f"--policy {file}", known.get(key), key, value) for key, value in document.items()}


def _text(whose: str, one: Described | None, key: str, value: Any) -> str:
    if one is None or (isinstance(value, str) and issubclass(one.type, Entries)):
        return str(value)  # `_values` refuses unknown keys
    if issubclass(one.type, Entries):
        if isinstance(value, list) and all(isinstance(entry, str) and "," not in entry for entry in value):
            return ",".join(value)
    elif type(value) is one.type or (one.type is float and type(value) is int):
        return repr(value)
    raise _wrong(whose, one, key, value)


def _values(whose: str, texts: Mapping[str, str]) -> dict[str, Any]:
    known, found = described(Policy), {}
    for key, text in texts.items():
        if key not in known:
            raise ConfigError(f"{whose}: there is no key {key!r}", suggestion(key, known))
        try:
            found[key] = known[key].parse(text)
        except OptionError:
            raise _wrong(whose, known[key], key, text) from None
    return found


def _wrong(whose: str, one: Described, key: str, value: object) -> ConfigError:
    return ConfigError(f"{whose}: {key} is {value!r}", f"give {one.metadata.get('wanted') or one.wanted}")
