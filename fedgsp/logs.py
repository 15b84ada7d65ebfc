"""Log lines of a process, and the line that explains its exit code. Text from others cannot forge any of them."""

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from fedgsp.errors import UserError
from fedgsp.times import stamp
from fedgsp.visible import visible


def configure(verbose: bool = False, json_lines: bool = False) -> None:
    """Log to stderr from level INFO on; with `verbose`, also the DEBUG lines of this project.

    With `json_lines`, log to stdout, one JSON object per line; what the user's code prints then goes to stderr.
    """
    handler = _Handler(sys.stdout if json_lines else None)
    handler.setFormatter(
        _JsonFormatter() if json_lines else _Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    if json_lines:
        sys.stdout = sys.stderr
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for package in ("fedgsp", "fedgsp_node", "group_manager", "top_server"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def only_results_on_stdout() -> contextlib.redirect_stdout[Any]:
    """A context in which the standard output of the user's code goes to stderr, so that only results are printed."""
    return contextlib.redirect_stdout(sys.stderr)


def report(error: UserError) -> int:
    """Write to stderr, in one line, why the process ends; returns the exit code."""
    say(f"error: {visible(' '.join(str(error).split()))}")
    return error.exit_code


def say(line: str) -> None:
    """Write a line to stderr. If stderr cannot be written (a closed terminal, a full disk), the line is dropped."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class _Handler(logging.StreamHandler[Any]):
    """Reads sys.stderr at every line, unless a stream is given, because a live display may replace it."""

    def __init__(self, stream: Any = None) -> None:
        logging.Handler.__init__(self)
        self._stream = stream

    @property
    def stream(self) -> Any:
        return self._stream or sys.stderr


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 (logging's name)
        return stamp(datetime.fromtimestamp(record.created, UTC))

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler may have left the text of the exception as it is
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        # Indented: the text of an exception may have several lines, one of which could look like a line of this log.
        return "\n".join(f"  {visible(line)}" for line in super().formatException(ei).split("\n"))


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
