"""A chained file without an end: when it is large, it is put aside as a part, and the chain goes on in a new file.

`receipts.jsonl` has the newest lines. `receipts-0000000001.jsonl` has those from line 1 on, and so each older part has
the number of its first line in its name: it never gets the name of another part, wherever that is kept.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgsp.errors import not_written
from fedgsp.files import MOST_LINE, open_file, parse_json, sync
from fedgsp.security.chained import BEGIN, BrokenError, ChainedFile, Link, hash_of, links

#: A file of so many bytes is put aside before the next line. A start reads the newest file, in half a second a part.
PART_BYTES = 16 << 20
#: Bytes that are read at once to find the last line of a part, from its end.
_BLOCK = 1 << 16


def parts_of(path: Path) -> list[tuple[int, Path]]:
    """The older parts of a file, and the numbers of their first lines, in the order of the lines."""
    named = re.compile(rf"{re.escape(path.stem)}-(\d{{10,18}}){re.escape(path.suffix)}", re.ASCII)
    found = ((named.fullmatch(one.name), one) for one in path.parent.iterdir())
    return sorted((int(match[1]), one) for match, one in found if match)


def part_of(path: Path, first: int) -> Path:
    """The older part of a file whose first line has this number."""
    return path.with_name(f"{path.stem}-{first:010}{path.suffix}")


def links_of_parts(path: Path) -> Iterator[Link]:
    """All lines of a file and its older parts, read one by one; raises OSError if there is none of these files.

    Raises BrokenError at the first line that does not continue the one before, and where a part is missing. Raises
    TornError if the last line of the newest file has no end.
    """
    number, head = 0, BEGIN
    older = parts_of(path)
    newest = [(_first_of(path)[0], path)] if path.exists() or not older else []
    for first, part in [*older, *newest]:
        if first > number + 1:
            raise BrokenError(number + 1, f"it is missing, with all lines up to line {first - 1}")
        with open_file(part) as file:
            try:
                for link in links(file, number, head):
                    number, head = link.number, link.hash
                    yield link
            except BrokenError as error:
                kind = type(error) if part == path else BrokenError  # nobody writes an older part any more
                raise kind(error.number, f"{error.why} ({part.name})") from None


class ChainedParts(ChainedFile):
    """Writes such a file, or continues it. Only the newest file is read, and the last line of the part before it.

    The older parts may have been moved elsewhere: only `links_of_parts` notices that one is missing.
    """

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        """As `ChainedFile`; `part_bytes` is the size from which a file is put aside."""
        self._part_bytes = part_bytes
        self._first = 1
        super().__init__(path)

    def append(self, fields: Mapping[str, Any], lasting: bool = False) -> None:
        """As that of `ChainedFile`; in a new file if this one is large."""
        if self._end >= self._part_bytes:
            try:
                self._put_aside()
            except OSError as error:
                raise not_written(self.path, error) from error
        super().append(fields, lasting)

    def _put_aside(self) -> None:
        self._file.truncate(self._end)  # an append before may have failed halfway
        aside = part_of(self.path, self._first)
        if not aside.exists():  # or an earlier try came as far as this
            os.fsync(self._file.fileno())  # a start takes a part for whole: a power cut must not take its end
            os.rename(self.path, aside)
        file = self._opened(os.O_EXCL)
        self._file.close()
        self._file, self._first, self._end = file, self.number + 1, 0
        sync(self.path.parent)

    def _continue(self) -> None:
        first, before = _first_of(self.path)
        older = [(number, part) for number, part in parts_of(self.path) if number < first or not first]
        if older:
            self.number, self.head = _last_of(older[-1][1])
        if first > self.number + 1:  # the parts before it were moved away
            self.number, self.head = first - 1, before
        self._first = self.number + 1
        super()._continue()


def _first_of(path: Path) -> tuple[int, str]:
    """The number of the first line of a file, and what it says of the line before; 0 and no text if it has none."""
    with open_file(path) as file:
        raw = file.readline(MOST_LINE)
    if not raw.endswith(b"\n"):
        return 0, BEGIN
    return _said_by(raw)


def _last_of(path: Path) -> tuple[int, str]:
    """The number of the last line of an older part, and its hash; raises BrokenError if it is none."""
    with open_file(path) as file:
        at = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and tail.count(b"\n", 0, -1) < 1 and len(tail) < MOST_LINE:
            block = min(_BLOCK, at)
            at = file.seek(at - block)
            tail = file.read(block) + tail
    raw = tail.splitlines(keepends=True)[-1:]
    number = _said_by(raw[0])[0] if raw and raw[0].endswith(b"\n") else 0
    if not number:
        raise BrokenError(0, f"the last line of {path.name} is not whole")
    return number, hash_of(raw[0])


def _said_by(raw: bytes) -> tuple[int, str]:
    try:
        fields = parse_json(raw)
        number, before = fields["line"], fields["before"]
    except (ValueError, TypeError, KeyError):
        return 1, BEGIN  # reading it as the first line says what is wrong with it
    return (number, before) if type(number) is int and number > 0 and isinstance(before, str) else (1, BEGIN)
