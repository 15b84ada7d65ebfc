"""Keeps the standard output for results: what the user's code and its child processes print goes to stderr."""

import fcntl
import io
import os
import sys
from typing import Any

#: The lowest descriptor that is none of stdin, stdout and stderr.
_BESIDE_THE_STANDARD_ONES = 3
#: Streams whose place stderr has taken: without any holder, they would close their files.
_HELD: list[Any] = []


def taken() -> Any:
    """A stream to the standard output until the process ends, None if there is none.

    What others print there goes to stderr. They never get it back: a thread or a child process of the user's code may
    go on after the call that has started it. The stream has no buffer: its `write` writes all, or raises OSError.
    """
    output = sys.stdout
    kept = _exchanged(output)
    _HELD.append(output)
    sys.stdout = sys.stderr
    if kept is None:
        return output
    # Without a buffer: Python would try to write what a full disk has refused once more when the process ends.
    return io.TextIOWrapper(_Whole(kept), output.encoding, output.errors, write_through=True)


class _Whole(io.RawIOBase):
    """Writes all or raises OSError; FileIO writes a part on a disk that becomes full, and raises nothing.

    After a line that was cut, it begins a new one.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_cut = False

    def fileno(self) -> int:
        return self._number

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = (b"\n" if self._is_cut else b"") + bytes(data)
        while rest:
            count = os.write(self._number, rest)
            written, rest = rest[:count], rest[count:]
            self._is_cut = bool(rest) and not written.endswith(b"\n")
        return len(data)


def _exchanged(output: Any) -> int | None:
    """Lets the descriptor of a stream be that of stderr; returns a new one of what it was, None if it has none."""
    number = _descriptor(output)
    if number is None:
        return None
    output.flush()
    # Not that of a stderr that the shell has closed: code in C would write its errors among the results.
    kept = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _BESIDE_THE_STANDARD_ONES)
    errors = _descriptor(sys.stderr)
    if errors is not None:
        os.dup2(errors, number)
    else:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), number)
    return kept


def _descriptor(stream: Any) -> int | None:
    try:
        found: int = stream.fileno()
    except (OSError, ValueError, AttributeError):  # none, closed, or put there by a test or a notebook
        return None
    return found
