"""Common parts of the commands that people call. typer is imported by the first call: managers do not need it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import fedgsp
from fedgsp import logs, stdout
from fedgsp.errors import ConfigError, RunError, UserError, reason_of, remedy_of
from fedgsp.visible import visible

if TYPE_CHECKING:
    import typer


def run(app: typer.Typer, name: str) -> int:
    """Runs the command line of this process, and returns the exit code. A user's mistake is reported in one line.

    So is a standard output that cannot be written.

    What is written meanwhile, also by processes that are started, is for this user alone: records name ports and
    nodes, and hold models.
    """
    from typer.exceptions import TyperException

    if path := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = python_path(path)  # for the processes that this one starts
    umask, output = os.umask(0o077), stdout.watched()
    try:
        check_text(sys.argv[1:])
        code: int = app(prog_name=name, standalone_mode=False)
        if not code:  # another code says more
            stdout.flush(output)
    except UserError as error:
        return logs.report(error)
    except TyperException as error:
        return logs.report(ConfigError(error.format_message().rstrip(".") + _given(error), "see --help"))
    except KeyboardInterrupt:
        return 130
    except (OSError, SystemExit) as error:
        if (lost := stdout.report(error)) is not None:
            return lost
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return logs.report(RunError(f"this process cannot go on: {reason_of(error)}", remedy_of(error)))
        raise
    finally:
        os.umask(umask)
        stdout.let_go(output)
    return code


def _given(error: Exception) -> str:
    """The value that a mistake is about, in brackets; empty if it is not known."""
    found = getattr(error.__cause__, "errors", None)  # of pydantic, which reads the values of flags
    return f" (given: '{visible(str(found()[0]['input']))}')" if found else ""


def python_path(path: str) -> str:
    """A PYTHONPATH that does not depend on the working directory.

    To Python an empty element is the working directory, from which files would be imported. Nobody means that who
    writes `PYTHONPATH=$PYTHONPATH:/more`.
    """
    return os.pathsep.join(os.path.abspath(element) for element in path.split(os.pathsep) if element)


def check_text(arguments: Sequence[str]) -> None:
    """Raises ConfigError, with the name of the flag, if an argument is not text: it could not be recorded or sent."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        try:
            argument.encode()
        except UnicodeEncodeError:  # Python keeps undecodable bytes as lone surrogates
            is_value = before.startswith("-") and "=" not in before and not argument.startswith("-")
            flag = f"{before} " if is_value else ""
            told = f"{flag}{ascii(argument)[1:-1]}"
            if _is_utf8(argument):
                raise ConfigError(
                    f"{told} is UTF-8, which Python does not read here (LC_ALL, LANG or PYTHONUTF8)",
                    "set PYTHONUTF8=1",
                ) from None
            raise ConfigError(f"{told} is not UTF-8", "write it in UTF-8") from None


def _is_utf8(argument: str) -> bool:
    try:
        os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        return False
    return True


def version_of(name: str) -> Callable[[bool], None]:
    """The callback of the flag --version of the command `name`."""

    def show(wanted: bool) -> None:
        import typer

        if wanted:
            typer.echo(f"{name} {fedgsp.__version__}")
            raise typer.Exit

    return show
