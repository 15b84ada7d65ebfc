"""From the settings of a run to flags, and from flags back to settings."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsp.options import options
from top_server.config import FIELDS, TYPES, RunConfig, check, choices, flag

if TYPE_CHECKING:
    from collections.abc import Mapping


def parameters() -> list[inspect.Parameter]:
    """One keyword parameter per setting, annotated as typer reads it."""
    return [_parameter(name, field) for name, field in FIELDS.items()]


def _parameter(name: str, field: dataclasses.Field[Any]) -> inspect.Parameter:
    is_table = _is_table(name)
    names = ", ".join(choices(name))
    option = typer.Option(
        flag(name),
        help=f"{field.metadata['help']} ({names})" if names else field.metadata["help"],
        metavar="KEY=VALUE" if is_table else field.metadata.get("metavar"),
        rich_help_panel=field.metadata["panel"],
        show_default=not is_table,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=[] if is_table else field.default,
        annotation=Annotated[list[str] if is_table else TYPES[name], option],
    )


def given(context: typer.Context) -> dict[str, Any]:
    """The settings that stood on the command line, not those that are defaults."""
    found: dict[str, Any] = {}
    for name in FIELDS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            found[name] = options(flag(name), value) if _is_table(name) else value
    return found


def combine(base: RunConfig, flags: Mapping[str, Any]) -> RunConfig:
    """The base with flags over it, checked; options are merged one by one. Raises ConfigError."""
    changes = dict(flags)
    for name, field in FIELDS.items():
        owner = field.metadata.get("options_of")
        # Options of a file belong to the task or grouping of that file: another one would only refuse them.
        if owner and flags.get(owner, getattr(base, owner)) == getattr(base, owner):
            changes[name] = getattr(base, name) | flags.get(name, {})
        elif owner:
            changes[name] = flags.get(name, {})
    config = dataclasses.replace(base, **changes)
    check(config)
    return config


def _is_table(name: str) -> bool:
    return typing.get_origin(TYPES[name]) is dict
