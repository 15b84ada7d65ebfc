"""Settings on the command line of a child process: written by the parent, read by the child."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described


def arguments_of(settings: Any) -> list[str]:
    """The command line that gives a child process these settings. Paths are absolute: none looks like a flag."""
    words: list[str] = []
    for name, one in described(type(settings)).items():
        value = getattr(settings, name)
        if value == one.default:
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
        parser.add_argument(
            flag(name),
            type=one.type,
            default=one.default,
            choices=one.choices or None,
            metavar=one.metavar,
            help=one.help,
            required=bool(one.metadata.get("required")),
        )
