"""Reads the record of a run for trackers: events.jsonl from any place on, also while a top server writes it."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedgsp
from fedgsp.errors import DataError, reason_of
from fedgsp.files import open_file, parse_json, whole_lines
from fedgsp.options import shortened
from fedgsp.run_ids import is_run
from fedgsp.settings.connections import CONNECTIONS
from fedgsp.settings.fields import described
from fedgsp.settings.placing import PROCESSES
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig
from fedgsp.settings.run_files import RECORD
from fedgsp.settings.watching import WATCHING
from top_server.record.damage import MALFORMED
from top_server.record.directory import RunDirectory
from top_server.recorded import BEGINS
from top_server.tracking.base import About, Outcome, Points
from top_server.tracking.points import KINDS, ROUND, Gathered, time_of

#: Panels of settings that say where and how a run is played, and not what it trains.
_NO_PARAMETERS = (CONNECTIONS, PROCESSES, RECORD, WATCHING)
#: The kind of an event stands within so many bytes of its line: behind its time.
_HEAD = 100


@dataclass(frozen=True, slots=True)
class _Line:
    """An event, and where it stands in the file."""

    event: Mapping[str, Any]
    offset: int
    end: int


class Reader:
    """Reads the rounds of a run in ascending order, each once, and remembers how far it has come.

    A round that was played again counts as it was played last, as in the history.
    """

    def __init__(self, directory: RunDirectory) -> None:
        """Raises DataError if the record has no run that has begun, or is damaged."""
        self._path = directory.events
        self._next = 0
        self._round = 0
        self._gathered = Gathered()
        #: How the run ended, as far as it was read.
        self.outcome = Outcome()
        begun: list[Mapping[str, Any]] = []
        self._surveyed = 0
        #: Round -> where its event stands, up to there. A top server that begins plays all later rounds again.
        self._valid: dict[int, int] = {}
        for line in _lines(self._path, 0, (*BEGINS, ROUND)):
            try:
                self._survey(line, begun)
            except MALFORMED as error:
                raise _damaged(self._path, error) from None
        if not begun:
            raise DataError(f"{directory.path} holds no run that has begun", "give the directory of a run")
        self.about = _about(directory, begun[0], begun[-1])

    def _survey(self, line: _Line, begun: list[Mapping[str, Any]]) -> None:
        number = line.event.get("round", 0)
        if line.event["event"] in BEGINS:
            begun.append(line.event)
            self._valid = {before: offset for before, offset in self._valid.items() if before <= number}
        else:
            self._valid[number] = line.offset
        self._surveyed = line.end

    def read(self) -> Iterator[Points]:
        """The rounds that are finished since the last call, whose caller took all; raises DataError."""
        for line in _lines(self._path, self._next, KINDS):
            self._next = line.end
            try:
                found = self._gathered.note(line.event)
            except MALFORMED as error:
                raise _damaged(self._path, error) from None
            if line.event["event"] in BEGINS:
                self.outcome = Outcome()
            elif isinstance(found, Outcome):
                self.outcome = found
            elif isinstance(found, Points) and self._counts(found.round, line.offset):
                self._round = found.round
                yield found

    def _counts(self, number: int, offset: int) -> bool:
        return number > self._round and (offset >= self._surveyed or self._valid.get(number) == offset)


def _lines(path: Path, offset: int, kinds: Collection[str]) -> Iterator[_Line]:
    """The events of these kinds from an offset on; the last line may still be written. Raises DataError."""
    wanted = re.compile(rb'"event": "(%s)"' % "|".join(sorted(kinds)).encode()).search
    try:
        with open_file(path) as file:
            file.seek(offset)
            for line in whole_lines(file):
                end = offset + len(line)
                if wanted(line, 0, _HEAD):
                    event = parse_json(line)
                    if isinstance(event, dict) and event.get("event") in kinds:
                        yield _Line(event, offset, end)
                offset = end
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason_of(error)}", "give the directory of a run") from None
    except ValueError as error:
        raise DataError(f"{path} has a line that is not JSON: {error}", "restore the file") from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} has a damaged event: {error!r}", "restore the file")


def _about(directory: RunDirectory, first: Mapping[str, Any], last: Mapping[str, Any]) -> About:
    config = load_recorded(directory.config)
    parameters: dict[str, str] = {}
    for one in described(RunConfig).values():
        value = getattr(config, one.field)
        if one.metadata["panel"] not in _NO_PARAMETERS and value not in (None, "", (), {}):
            several = value.items() if isinstance(value, dict) else ((None, value),)
            parameters |= {f"{one.field}.{key}" if key else one.field: _text(text) for key, text in several}
    told = {
        "scheme": config.scheme,
        "seed": config.seed,
        "task": config.task,
        "version": fedgsp.__version__,
        "commit": last.get("commit"),
    }
    try:
        began = time_of(first)
    except (KeyError, ValueError) as error:
        raise DataError(f"{directory.events} has an event without a time: {error}", "restore the file") from None
    run = str(last.get("run", ""))
    if not is_run(run):
        raise DataError(f"{directory.events} names no possible id of a run", "restore the file")
    tags = {name: _text(value) for name, value in told.items() if value is not None}
    return About(run, directory.path.absolute(), began, parameters, tags)


def _text(value: object) -> str:
    return shortened(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
