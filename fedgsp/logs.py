"""Log lines of a process, and the line that explains its exit code. Text from others cannot forge any of them."""

import contextlib
import json
import logging
import os
import stat
import sys
from datetime import UTC, datetime
from typing import Any

from fedgsp.errors import UserError, reason_of
from fedgsp.printing import Printer
from fedgsp.processes import apart
from fedgsp.times import stamp
from fedgsp.visible import visible


def configure(verbose: bool = False, json_lines: bool = False) -> None:
    """Log to stderr from level INFO on; with `verbose`, also the DEBUG lines of this project.

    With `json_lines`, log to stdout, one JSON object per line; what the user's code prints then goes to stderr.
    """
    handler = _Handler(apart.taken() if json_lines else None)
    handler.setFormatter(
        _JsonFormatter() if json_lines else _Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for package in ("fedgsp", "fedgsp_node", "group_manager", "top_server"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def report(error: UserError) -> int:
    """Write to stderr, in one line, why the process ends; returns the exit code."""
    say(f"error: {visible(' '.join(str(error).split()))}")
    return error.exit_code


def say(line: str) -> None:
    """Write a line to stderr. If stderr cannot be written (a closed terminal, a full disk), the line is dropped."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler) and handler.say(f"{line}\n"):
            return
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def flush() -> None:
    """Waits until the lines so far are written, some seconds at most if nobody reads them."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class _Handler(logging.StreamHandler[Any]):
    """Reads sys.stderr at every line, unless a stream is given, because a live display may replace it."""

    def __init__(self, stream: Any = None) -> None:
        logging.Handler.__init__(self)
        self._stream = stream
        self._lost = False
        #: Writes to `_aside_to` in a thread of its own. A terminal that was stopped by Ctrl-S, or a program that reads
        #: no further, would else stop the whole process at its next line.
        self._aside: Printer | None = None
        self._aside_to, self._process = self.stream, os.getpid()
        if (file := _may_block(self.stream)) is not None:
            self._aside = Printer(file, self.stream.encoding or "utf-8", tells=False)

    @property
    def _printer(self) -> Printer | None:
        """What writes aside; None if another stream has taken the place of stderr, and in a forked process."""
        return self._aside if self.stream is self._aside_to and os.getpid() == self._process else None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        if (printer := self._printer) is None:
            return super().emit(record)
        try:
            printer.put(self.format(record) + self.terminator)
        except Exception:
            self.handleError(record)

    def say(self, text: str) -> bool:
        """Writes a text to stderr behind the lines so far, and returns True, if this handler writes aside there."""
        printer = self._printer
        if printer is None or self.stream is not sys.stderr:
            return False
        printer.put(text)
        printer.wait()
        return True

    def flush(self) -> None:
        """Waits until the lines so far are written, some seconds at most if nobody reads them.

        `logging` calls this when the process ends.
        """
        if (printer := self._printer) is not None:
            printer.wait()
        else:
            super().flush()

    @property
    def stream(self) -> Any:
        return self._stream or sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Leaves out a line that cannot be written. `logging` would write a traceback to stderr for each of them."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._lost:
            self._lost = True
            say(f"log lines cannot be written, and are left out: {reason_of(error)}")


def _may_block(stream: Any) -> int | None:
    """The descriptor of a stream for which a reader may keep the writer waiting: a pipe, a socket, or a terminal."""
    try:
        file: int = stream.fileno()
        mode = os.fstat(file).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return file if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(file) else None


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
