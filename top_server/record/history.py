"""Reads and writes files of JSON lines, such as history.jsonl; `figures` says what is in a row of the history."""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgsp.errors import DataError
from fedgsp.files import MOST_LINE, open_file, parse_json
from top_server.record.columns import Columns, wrong_in


def plain(value: Any) -> Any:
    """The value in types of JSON: NaN and infinity become null, arrays lists, keys text, all else its text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    return str(value)


def to_line(value: Mapping[str, Any]) -> str:
    """One line of JSON, with its newline, for a value made by `plain`; raises ValueError for NaN or infinity."""
    return json.dumps(value, allow_nan=False) + "\n"


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, read one by one: the events of a long run need gigabytes of memory.

    So do its rows, which have figures of each client. A last line without a newline is left out: its writer was
    interrupted. Raises DataError if the file cannot be read, or if another line is not a JSON object.
    """
    for number, line in _numbered_lines(path):
        yield _object(path, number, line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All of `lines_of` in memory: for a file that is known to be small, or for a caller who wants all."""
    return list(lines_of(path))


def last_line(path: Path) -> dict[str, Any]:
    """The last object of `lines_of`, without reading the others as JSON; raises DataError if there is none."""
    for number, line in deque(_numbered_lines(path), maxlen=1):
        return _object(path, number, line)
    raise DataError(f"{path} has no line", "restore the file")


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, without their newlines."""
    try:
        with open_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE), b""), start=1):
                if len(line) == MOST_LINE:
                    raise DataError(f"{path}, line {number} is longer than any that is written", "restore the file")
                if not line.endswith(b"\n"):
                    return
                yield number, line[:-1]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "give the directory of a run") from None


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise DataError(
            f"{path}, line {number} is not JSON: {error}", "restore the file, or remove that line"
        ) from None
    if not isinstance(found, dict):
        raise DataError(f"{path}, line {number} is not an object", "restore the file, or remove that line")
    return found


def checked_lines(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    """As `lines_of`; raises DataError, with the line, also where a line has a value that is wrong for its column."""
    for number, row in enumerate(lines_of(path), start=1):
        if wrong := wrong_in(row, columns):
            raise DataError(f"{path}, line {number}: {wrong}", "restore the file")
        yield row
