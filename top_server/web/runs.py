"""The runs in a folder, and what a list says of each of them: the ends of its files are read, not all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from fedgsp.errors import DataError
from fedgsp.files import MOST_OF_SETTINGS, open_file, parse_json, parse_toml, read_text
from fedgsp.scoring import metric_of, rated
from fedgsp.times import stamp
from fedgsp.visible import visible
from top_server.record.damage import MALFORMED
from top_server.record.directory import RunDirectory
from top_server.record.machine import is_recorded
from top_server.record.scores import score_of, scored_by
from top_server.report.facts import ending, figure

#: Folders in folders that are searched, and runs that are listed: the newest.
_MOST_DEPTH, MOST_RUNS = 4, 1000
#: Bytes of the end of a file that are read, and at most if the last line is longer: a row of the history names every
#: client.
_TAIL, _MOST_TAIL = 1 << 18, 1 << 25


@dataclass(frozen=True, slots=True)
class Glance:
    """What the list says of a run."""

    name: str
    #: "finished", "failed", "stopped" or "open", and a sentence.
    kind: str
    title: str
    scheme: str
    task: str
    seed: str
    #: Rounds that are finished, and rounds that the run is to have.
    round: int
    rounds: int
    #: The last figure that rates the models, such as "accuracy 93.10 %".
    score: str
    #: When something was recorded last, ISO 8601, UTC.
    changed: str


class Runs:
    """The runs in a folder, by name: the path below the folder; of a folder that is a run itself, its own name.

    Bytes of a path that are not UTF-8 stand in the name as \\xNN: no browser could send them.
    """

    def __init__(self, root: Path) -> None:
        """Raises DataError if there is no such folder."""
        if not root.is_dir():
            raise DataError(f"{root} is no folder", "give the directory of a run, or a folder with such directories")
        self.root = root.absolute()

    def found(self) -> dict[str, RunDirectory]:
        """The runs that are there now, newest first."""
        if _is_run(self.root):
            return {_sayable(self.root.resolve().name): RunDirectory(self.root)}
        paths = sorted(_runs_below(self.root, _MOST_DEPTH), key=_changed, reverse=True)[:MOST_RUNS]
        return {_sayable(path.relative_to(self.root).as_posix()): RunDirectory(path) for path in paths}

    def get(self, name: str) -> RunDirectory | None:
        """The run of this name; None if the list does not have it. A name is never taken for a path."""
        return self.found().get(name)


def parsed(line: bytes) -> Any:
    """The value of a line of a record; ValueError for a line that is not JSON."""
    try:
        return orjson.loads(line)
    except ValueError:  # it takes no half of a surrogate pair, which stands for a byte of a path that is not UTF-8
        return parse_json(line)


def _sayable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file() and (path / "events.jsonl").is_file()


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        below = sorted(Path(one) for one in os.scandir(folder) if one.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in below:
        if _is_run(path):
            yield path
        elif depth > 1:
            yield from _runs_below(path, depth - 1)


def _changed(path: Path) -> float:
    try:
        return (path / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def glance(name: str, directory: RunDirectory) -> Glance:
    """What the list says of a run; of a damaged one, that it is damaged."""
    try:
        settings = parse_toml(read_text(directory.config, MOST_OF_SETTINGS))
        events, rows = _last_lines(directory.events), _last_lines(directory.history)
        return _glance(name, directory, settings, events, rows)
    except (OSError, *MALFORMED) as error:
        title = visible(f"The record cannot be read: {error}")
        return Glance(visible(name), "failed", title, "", "", "", 0, 0, "", "")


def _glance(
    name: str,
    directory: RunDirectory,
    settings: Mapping[str, Any],
    events: list[dict[str, Any]],
    rows: list[dict[str, Any]],
) -> Glance:
    number = int(rows[-1]["round"]) if rows else 0
    # A run that has begun a round has begun; that event may be far from the end.
    begun = {"event": "run_started"} if rows or any("round" in event for event in events) else {}
    told = ending([begun, *events], number, is_recorded(directory))
    last = next((row for row in reversed(rows) if score_of(row) is not None), None)
    score = ""
    if last is not None and (value := score_of(last)) is not None:
        metric = metric_of(scored_by(last))
        score = f"{visible(metric)} {figure(metric, rated(scored_by(last), value))}"
    return Glance(
        name=visible(name),
        kind=told.kind,
        title=told.title,
        scheme=visible(str(settings.get("scheme", ""))),
        task=visible(str(settings.get("task", ""))),
        seed=str(settings.get("seed", 0)),
        round=number,
        rounds=int(settings.get("rounds", 0)),
        score=score,
        changed=stamp(datetime.fromtimestamp(directory.events.stat().st_mtime, UTC)),
    )


def _whole_lines(file: BinaryIO, size: int, tail: int) -> list[bytes]:
    """The lines that begin and end in the last bytes of a file of this size."""
    file.seek(max(0, size - tail))
    lines = file.read(tail).split(b"\n")[:-1]
    return lines if tail >= size else lines[1:]


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in the last lines of a file; empty if there is no such file. Raises ValueError, OSError."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        return []
    with file:
        size, tail = file.seek(0, os.SEEK_END), _TAIL
        while not (whole := _whole_lines(file, size, tail)) and tail < size:
            if tail >= _MOST_TAIL:
                raise ValueError(f"the last line of {path.name} has more than {tail:,} bytes")
            tail *= 2
    return [line for line in map(parsed, whole) if isinstance(line, dict)]
