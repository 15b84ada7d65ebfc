"""Whether settings can be used: the only place where their values are judged."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedgsp.connections.addresses import check_address
from fedgsp.errors import ConfigError
from fedgsp.options import suggestion
from fedgsp.settings.fields import Described, described

#: Setting -> the names that it may take, where these are in tables of parts and not in its description.
Names = Mapping[str, Iterable[str]]


def flag(name: str) -> str:
    """The command line flag of a setting: `sampling_rate` gives `--sampling-rate`."""
    return f"--{name.replace('_', '-')}"


def choices(one: Described, names: Names) -> tuple[str, ...]:
    """The names that a setting may take; empty if it takes other values than names."""
    return one.choices or tuple(names.get(one.field, ()))


def check(settings: Any, names: Names) -> None:
    """Raise ConfigError for the first setting that cannot be used, or that does not go with another one."""
    for name, one in described(type(settings)).items():
        value = getattr(settings, name)
        if value is None:
            continue
        if not value and (remedy := one.metadata.get("required")):
            raise ConfigError(f"{flag(name)} is missing", remedy)
        if one.type is tuple:
            if not one.metadata.get("other_names"):
                _check_list(flag(name), value, one.choices or names.get(name, ()))
            continue
        service = one.metadata.get("service", "")
        if service and value.startswith(service):
            check_address(flag(name), value.removeprefix(service))
        elif (known := choices(one, names)) and not one.metadata.get("other_names"):
            check_name(flag(name), value, known)
        elif not one.allows(value):
            raise ConfigError(f"{flag(name)} is {value}", f"give {one.wanted}")
        elif one.metadata.get("address"):
            check_address(flag(name), value)
    settings.check_together()


def check_name(flag: str, value: str, known: Iterable[str]) -> None:
    """Raise ConfigError unless `value` is one of the known names; the remedy names the closest one."""
    if value not in (names := tuple(known)):
        raise ConfigError(f"{flag} cannot be {value!r}", suggestion(value, names))


def _check_list(flag: str, values: tuple[str, ...], known: Iterable[str]) -> None:
    for value in values:
        check_name(flag, value, known)
        if values.count(value) > 1:
            raise ConfigError(f"{flag} {value} is given twice", "give it once")
