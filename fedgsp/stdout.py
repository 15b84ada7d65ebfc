"""The standard output of a command. If it cannot be written, the command ends with one line, and no traceback."""

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from fedgsp import logs
from fedgsp.errors import RunError, not_written, reason_of
from fedgsp.processes import apart
from fedgsp.visible import visible_lines

#: Exit code of a command whose reader has closed the pipe, as `... | head` does: 128 plus SIGPIPE, as in shells.
CLOSED_PIPE = 141


class OutputError(OSError):
    """The standard output cannot be written."""


class _Output(io.TextIOWrapper):
    def __init__(self, before: io.TextIOWrapper) -> None:
        newline, at_once = None, before.write_through
        super().__init__(before.buffer, before.encoding, before.errors, newline, before.line_buffering, at_once)
        self._before = before  # without any holder it would close the buffer of both

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None

    def flush(self) -> None:
        try:
            self._before.flush()  # a task may have printed to sys.__stdout__
            super().flush()
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None


def watched() -> Any:
    """Lets the standard output of this process raise OutputError from now on; returns it, or None if there is none."""
    found = sys.stdout
    if type(found) is io.TextIOWrapper:  # a test may have put something else there
        sys.stdout = _Output(found)
    return sys.stdout


def flush(output: Any) -> None:
    """Writes what a stream still has in its buffer; does nothing without a stream."""
    if output is not None and not output.closed:
        output.flush()


def let_go(output: Any) -> None:
    """Drops what cannot be written: Python would try it again, and print a traceback, when the process ends."""
    try:
        flush(output)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def report(error: BaseException | None) -> int | None:
    """The exit code for a standard output that cannot be written; None for another error.

    Nothing is said to somebody who has only stopped reading.
    """
    if isinstance(error, SystemExit):
        error = error.__context__  # so does typer if the reader has left
    if not isinstance(error, OutputError):
        return None
    return CLOSED_PIPE if error.errno == errno.EPIPE else logs.report(not_written("standard output", error))


def echo(text: object, err: bool = False) -> None:
    """Prints lines of a result. What they quote of records, models and peers gives the terminal no command."""
    import typer

    typer.echo(visible_lines(str(text)), err=err)


def taken() -> Callable[[object], None]:
    """Takes the standard output for results until the process ends; returns what prints lines of a result there.

    For commands that run the user's code: what that prints, even later, goes to stderr.
    """
    output = apart.taken()

    def echo_result(text: object) -> None:
        import typer

        if output is None:  # the shell has closed it: `>&-`
            return
        try:
            typer.echo(visible_lines(str(text)), file=output)
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None

    return echo_result


def tell_once(what: str, text: str, remedy: str) -> None:
    """Prints what is not kept anywhere; RunError with the `remedy` if it cannot be written."""
    try:
        if sys.stdout is None:  # the shell has closed it: `>&-`
            raise OutputError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        raise RunError(f"{what} could not be written ({reason_of(error)})", remedy) from None
