"""Settings as flags: of a typer command, with the way back to settings, and of child processes."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fedgsp.options import options
from fedgsp.settings.checks import Names, check, choices, flag
from fedgsp.settings.fields import Described, described

if TYPE_CHECKING:
    import typer

T = TypeVar("T")


def with_flags(kind: type[Any], names: Names) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a typer command a flag for every setting, in place of its `**settings`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        given = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        flags = [_parameter(one, choices(one, names)) for one in described(kind).values()]
        command.__signature__ = inspect.Signature([*given, *flags])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(one: Described, names: tuple[str, ...]) -> inspect.Parameter:
    import typer

    several = one.type in (dict, tuple)
    option = typer.Option(
        flag(one.field),
        help=f"{one.help} ({', '.join(names)})" if names else one.help,
        metavar=one.metavar or ("KEY=VALUE" if one.type is dict else None),
        rich_help_panel=one.metadata.get("panel"),
        show_default=not several and one.type is not bool and one.default not in (None, ""),
    )
    kind = list[str] if several else one.type | None if one.optional else one.type
    default = [] if several else one.default
    return inspect.Parameter(
        one.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def given(context: typer.Context, kind: type[Any]) -> dict[str, Any]:
    """The settings that were given as flags, without defaults.

    Raises ConfigError if an option is not written as `key=value`, or if a key is given twice.
    """
    found: dict[str, Any] = {}
    for name, one in described(kind).items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            found[name] = options(flag(name), value) if one.type is dict else value
            if one.type is tuple:
                found[name] = tuple(value)
    return found


def settled(kind: type[T], file: Path | None, flags: Mapping[str, Any], names: Names) -> T:
    """The settings of the file, if there is one; flags take precedence. Raises ConfigError for wrong values."""
    from fedgsp.settings.files import load  # TOML, without which group managers start faster

    return combine(load(kind, file) if file else kind(), flags, names)


def combine(base: T, flags: Mapping[str, Any], names: Names) -> T:
    """The settings `base`, replaced by those given as flags; options are replaced one by one. Raises ConfigError."""
    changes = dict(flags)
    for name, one in described(type(base)).items():
        owner = one.metadata.get("options_of")
        # Options in a file belong to the choice in that file. Another choice would only refuse them.
        if owner and flags.get(owner, getattr(base, owner)) == getattr(base, owner):
            changes[name] = getattr(base, name) | flags.get(name, {})
        elif owner:
            changes[name] = flags.get(name, {})
    settings = dataclasses.replace(base, **changes)  # type: ignore[type-var]
    check(settings, names)
    return settings


def arguments_of(settings: Any) -> list[str]:
    """The command line that gives a child process these settings. Paths are absolute: none looks like a flag."""
    words: list[str] = []
    for name, one in described(type(settings)).items():
        value = getattr(settings, name)
        if value == one.default:
            continue
        if one.type is bool:
            words.append(flag(name))
            continue
        if one.type is dict:
            texts = [f"{key}={text}" for key, text in value.items()]
        elif one.type is tuple:
            texts = list(value)
        else:
            texts = [str(value.absolute() if isinstance(value, Path) else value)]
        for text in texts:
            words += [flag(name), text]
    return words


def add_to(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    """Give a parser a flag for every setting: for a program that must start too fast to import typer."""
    for name, one in described(kind).items():
        if one.type is bool:
            parser.add_argument(flag(name), action="store_true", help=one.help)
            continue
        parser.add_argument(
            flag(name),
            type=one.type,
            default=one.default,
            choices=one.choices or None,
            metavar=one.metavar,
            help=one.help,
            required=bool(one.metadata.get("required")),
        )
