"""What the commands for a person have in common; typer comes in with the first call, as managers do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fedgsp
from fedgsp import logs
from fedgsp.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer


def run(app: typer.Typer, name: str) -> int:
    """Runs the command line of this process; says in one line what a person can mend, and returns the exit code."""
    from typer.exceptions import TyperException

    try:
        code: int = app(prog_name=name, standalone_mode=False)
    except UserError as error:
        return logs.report(error)
    except TyperException as error:
        return logs.report(ConfigError(error.format_message().rstrip("."), "see --help"))
    except KeyboardInterrupt:
        return 130
    return code


def version_of(name: str) -> Callable[[bool], None]:
    """What --version does."""

    def show(wanted: bool) -> None:
        import typer

        if wanted:
            typer.echo(f"{name} {fedgsp.__version__}")
            raise typer.Exit

    return show
