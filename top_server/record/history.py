"""Reads and writes files of JSON lines, such as history.jsonl; `figures` says what is in a row of the history."""

import json
import math
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

    A last line without a newline is left out: its writer was interrupted. Raises DataError if the file cannot be read,
    or if another line is not a JSON object.
    """
    try:
        with open_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE), b""), start=1):
                if len(line) == MOST_LINE:
                    raise DataError(f"{path}, line {number} is longer than any that is written", "restore the file")
                if not line.endswith(b"\n"):
                    return
                yield _object(path, number, line[:-1])
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "give the directory of a run") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All of `lines_of` in memory: for a file with a row for each round."""
    return list(lines_of(path))


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


def read_columns(path: Path, columns: Columns) -> list[dict[str, Any]]:
    """As `read_lines`; raises DataError, with the line, also where a line has a value that is wrong for its column."""
    rows = read_lines(path)
    for number, row in enumerate(rows, start=1):
        if wrong := wrong_in(row, columns):
            raise DataError(f"{path}, line {number}: {wrong}", "restore the file")
    return rows
