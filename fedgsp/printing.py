"""Writes lines without ever blocking the process, also if their reader is slow or gone."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
from collections import deque

logger = logging.getLogger(__name__)

#: Bytes that may wait for a slow reader; further lines are dropped.
MOST_WAITING_BYTES = 16 << 20
#: How long the end of a process waits for a slow reader, in seconds.
LAST_WORDS_S = 5.0


def printing() -> contextlib.closing[Printer]:
    """A printer to stdout; the end of its `with` block waits at most `LAST_WORDS_S` until all lines are written."""
    return contextlib.closing(Printer(_descriptor(), getattr(sys.stdout, "encoding", None) or "utf-8"))


def _descriptor() -> int | None:
    if sys.stdout is None:  # closed by the parent process
        return None
    try:
        sys.stdout.flush()
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None


class Printer:
    """Writes to a file in a separate thread; after a failed write it writes no more."""

    def __init__(self, file: int | None, encoding: str = "utf-8", tells: bool = True) -> None:
        """`tells`: the log has a line if texts are left out. It has none about the lines of the log itself."""
        self._file, self._encoding, self._tells = file, encoding, tells
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # of all waiting texts and of the text that is being written
        self._left_out = False  # whether a text was dropped
        self._closed = False
        self._changed = threading.Condition()
        # A daemon that does not use sys.stdout: a blocked write would otherwise keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="stdout", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Queue a text for writing; drop it if too much is waiting."""
        data = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            if self._file is None:
                return
            if not self._bytes or self._bytes + len(data) <= MOST_WAITING_BYTES:
                self._waiting.append(data)
                self._bytes += len(data)
                self._changed.notify_all()
                return
            if self._left_out:
                return
            self._left_out = True
        self._say("stdout is not read fast enough: lines are left out there; events.jsonl has all")

    def wait(self, timeout_s: float = LAST_WORDS_S) -> None:
        """Wait until all texts so far are written, but no longer than `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._file is None, timeout_s)

    def close(self, timeout_s: float | None = LAST_WORDS_S) -> None:
        """Wait until all texts are written, but no longer than `timeout_s`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and not self._left_out:
            self._say("stdout is not read: its last lines are left out there; events.jsonl has all")

    def _write_all(self) -> None:
        while (data := self._next()) is not None:
            assert self._file is not None
            rest = memoryview(data)
            try:
                while rest:
                    with contextlib.suppress(BlockingIOError):  # another program has set its terminal to non-blocking
                        rest = rest[os.write(self._file, rest) :]
                        continue
                    select.select([], [self._file], [])
            except OSError as error:
                with self._changed:
                    self._file = None
                    self._waiting.clear()
                    self._changed.notify_all()
                if not isinstance(error, BrokenPipeError):  # the reader has left, as `head` does
                    self._say(f"stdout cannot be written to any more: {error.strerror}; events.jsonl has all")
                return
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed or self._file is None)
            return self._waiting.popleft() if self._waiting else None

    def _say(self, what: str) -> None:
        if not self._tells:
            return
        # Not if stderr is the same pipe as stdout: if nobody reads it, the warning would block the run.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if self._file is None or not os.path.sameopenfile(self._file, sys.stderr.fileno()):
                logger.warning(what)
