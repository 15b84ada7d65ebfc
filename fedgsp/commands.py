"""What the commands for a person have in common; typer comes in with the first call, as managers do without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import fedgsp
from fedgsp import logs
from fedgsp.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import typer


def run(app: typer.Typer, name: str) -> int:
    """Runs the command line of this process; says in one line what a person can mend, and returns the exit code."""
    from typer.exceptions import TyperException

    try:
        check_text(sys.argv[1:])
        code: int = app(prog_name=name, standalone_mode=False)
    except UserError as error:
        return logs.report(error)
    except TyperException as error:
        return logs.report(ConfigError(error.format_message().rstrip("."), "see --help"))
    except KeyboardInterrupt:
        return 130
    return code


def check_text(arguments: Sequence[str]) -> None:
    """Raise ConfigError that names the flag if one is no text: it could not be recorded, or told to others."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        try:
            argument.encode()
        except UnicodeEncodeError:  # what could not be decoded stands there as lone surrogates
            is_value = before.startswith("-") and "=" not in before and not argument.startswith("-")
            flag = f"{before} " if is_value else ""
            raise ConfigError(f"{flag}{ascii(argument)[1:-1]} is not UTF-8", "write it in UTF-8") from None


def version_of(name: str) -> Callable[[bool], None]:
    """What --version does."""

    def show(wanted: bool) -> None:
        import typer

        if wanted:
            typer.echo(f"{name} {fedgsp.__version__}")
            raise typer.Exit

    return show
