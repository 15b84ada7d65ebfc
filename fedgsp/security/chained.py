"""Files of JSON lines in which every line has the SHA-256 of the line before, so that no line can be changed alone."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from fedgsp.errors import ConfigError, not_written
from fedgsp.files import MOST_LINE, check_line, check_only_name, parse_json, write_all
from fedgsp.locks import try_lock

#: What stands in the place of the hash in the first line.
BEGIN = "0" * 64


class BrokenError(Exception):
    """A line that does not fit to the lines before it."""

    def __init__(self, number: int, why: str) -> None:
        """`number` counts the lines from 1."""
        super().__init__(f"line {number}: {why}")
        self.number = number
        self.why = why


class TornError(BrokenError):
    """The last line has no end: its writer was interrupted, or is still writing."""


@dataclass(frozen=True, slots=True)
class Link:
    """One line: its number, its fields, its hash, and that of the line before."""

    number: int
    before: str
    hash: str
    fields: Mapping[str, Any]


def line_of(number: int, before: str, fields: Mapping[str, Any]) -> bytes:
    """The bytes of a line."""
    return json.dumps({"line": number, "before": before, **fields}, allow_nan=False).encode() + b"\n"


def hash_of(line: bytes) -> str:
    """What the next line has to say about a line."""
    return hashlib.sha256(line).hexdigest()


def links(file: BinaryIO, number: int = 0, head: str = BEGIN) -> Iterator[Link]:
    """The lines of a file, read one by one; raises BrokenError at the first that does not continue the one before.

    `number` and `head` are those of the line before the first one: the file may be a part of a longer one.
    """
    while raw := file.readline(MOST_LINE):
        number += 1
        if not raw.endswith(b"\n"):
            raise (TornError if len(raw) < MOST_LINE else BrokenError)(number, "it has no end")
        link = _link(raw, number, head)
        head = link.hash
        yield link


def _link(raw: bytes, number: int, head: str) -> Link:
    try:
        fields = parse_json(raw)
    except ValueError as error:
        raise BrokenError(number, f"it is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BrokenError(number, "it is not a JSON object")
    said, before = fields.pop("line", None), fields.pop("before", None)
    if type(said) is not int or said != number:
        raise BrokenError(
            number, f"it says that it is line {str(said)[:20]}: lines were removed, inserted or exchanged"
        )
    if before != head:
        last = f"line {number - 1} was changed, or this line" if number > 1 else "this line"
        raise BrokenError(number, f"it does not continue the line before: {last} was put here later")
    return Link(number, before, hash_of(raw), fields)


class ChainedFile(contextlib.AbstractContextManager["ChainedFile"]):
    """Writes such a file, which only its owner can read, or continues it. Only one thread may use it."""

    def __init__(self, path: Path) -> None:
        """Cuts off a half-written last line. Raises BrokenError if the lines do not fit together, or UserError."""
        self.path = path
        self.number, self.head = 0, BEGIN
        self._end = 0  # of the last whole line, in bytes
        try:
            self._file = self._opened()
            try:
                self._continue()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise not_written(path, error) from error

    def _opened(self, only_new: int = 0) -> FileIO:
        """The file, locked; with the flag `only_new` (O_EXCL) it must not be there. Raises OSError, ConfigError."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | only_new
        with contextlib.ExitStack() as stack:
            # Unbuffered: what is reported as written is with the operating system.
            file = stack.enter_context(open(os.open(self.path, flags, 0o600), "ab", buffering=0))
            check_only_name(file.fileno())
            os.fchmod(file.fileno(), 0o600)
            if not try_lock(file):
                raise ConfigError(f"another process writes {self.path}", "wait for its end, or stop it")
            stack.pop_all()
            return file

    def append(self, fields: Mapping[str, Any], lasting: bool = False) -> None:
        """Writes a line; raises RunError if the disk is full, or if the line is longer than any that is read.

        A `lasting` line survives a power cut, with all lines before it.
        """
        line = line_of(self.number + 1, self.head, fields)
        check_line(self.path, line)
        try:
            self._file.truncate(self._end)  # an append before may have failed halfway, as on a full disk
            write_all(self._file, line)
            if lasting:
                os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)  # a reader would take a line that could not be synced for written
            raise not_written(self.path, error) from error
        self.number, self.head = self.number + 1, hash_of(line)
        self._end += len(line)

    def _continue(self) -> None:
        with self.path.open("rb") as file, contextlib.suppress(TornError):
            for link in links(file, self.number, self.head):
                self.number, self.head, self._end = link.number, link.hash, file.tell()
        self._file.truncate(self._end)

    def __exit__(self, *_: object) -> None:
        self._file.close()
