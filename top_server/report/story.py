"""The record of a run as it is told later, read bit by bit while the run may still write it.

Single trainings are only counted: a long run has a million of them. Of values that a record has for each client, most
are left out: a round may have megabytes of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedgsp.errors import DataError
from fedgsp.files import LONG_LINE, MOST_LINE, open_file, parse_json
from top_server.pictures.kept import Kept, Rows, shared
from top_server.record.columns import EVENTS, HISTORY, Columns, is_client, wrong_in
from top_server.record.directory import RunDirectory
from top_server.record.events import KINDS
from top_server.record.journal import Line

Parse = Callable[[bytes], Any]
#: Bytes that are read at once.
_BLOCK = 1 << 22
#: What stands in the line of a single training, and how far from its begin, at most.
_TRAINING, _KIND_WITHIN = b'"event": "hop_finished"', 80
#: Kinds of events with a value for each client. Nobody reads them here; the history has those of a finished round.
_BY_CLIENT = tuple(kind for kind, event in KINDS.items() if event.may_lack)


@dataclass(slots=True)
class Trainings:
    """What the events `hop_finished` of a run add up to."""

    #: How often each client has trained.
    times: Counter[int] = field(default_factory=Counter)
    #: Seconds of all trainings together.
    seconds: float = 0.0
    #: Where a client trained last, and its number of samples.
    nodes: dict[int, str] = field(default_factory=dict)
    samples: dict[int, Any] = field(default_factory=dict)
    #: For each node: bytes of start weights that it fetched, and the bytes that came over connections for them.
    fetched: Counter[str] = field(default_factory=Counter)
    travelled: Counter[str] = field(default_factory=Counter)

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes one event."""
        self.seconds += float(event.get("seconds") or 0)
        node = str(event.get("node") or "")
        self.fetched[node] += int(event.get("bytes") or 0)
        self.travelled[node] += int(event.get("travelled") or 0)
        client = event.get("client")
        if type(client) is int:
            self.times[client] += 1
            self.nodes[client], self.samples[client] = node, event.get("samples")

    def before(self, later: Trainings) -> Trainings:
        """These trainings, and later ones."""
        return Trainings(
            self.times + later.times,
            self.seconds + later.seconds,
            self.nodes | later.nodes,
            self.samples | later.samples,
            self.fetched + later.fetched,
            self.travelled + later.travelled,
        )


class Grown:
    """A file of JSON lines from which only the lines are read that are new."""

    def __init__(self, path: Path, parse: Parse = parse_json) -> None:
        self._path = path
        self._parse = parse
        #: Bytes that were read: all before is complete lines.
        self.offset = 0

    def new(self, trainings: bool | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects in the new complete lines, each with the offset at which its line begins.

        With `trainings` true, the events of single trainings alone, and with false, all others. Raises DataError if
        the file cannot be read, or if a line is not a JSON object.
        """
        rest = b""
        try:
            with open_file(self._path) as file:
                file.seek(self.offset)
                while block := file.read(_BLOCK):
                    *lines, rest = (rest + block).split(b"\n")
                    begins = list(accumulate((len(line) + 1 for line in lines), initial=self.offset))
                    for place, line in _of_kind(lines, trainings):
                        found = self._object(line, begins[place])
                        self.offset = begins[place + 1]
                        yield begins[place], found
                    self.offset = begins[-1]
                    if len(rest) >= MOST_LINE:
                        raise DataError(f"{self._path}, byte {self.offset}: {LONG_LINE}", "restore the file")
        except OSError as error:
            raise DataError(f"{self._path} cannot be read: {error.strerror}", "give the directory of a run") from None

    def was_cut(self) -> bool:
        """Whether the file is not any more what was read, with more lines behind."""
        try:
            with open_file(self._path) as file:
                file.seek(max(0, self.offset - 1))
                return self.offset > 0 and file.read(1) != b"\n"
        except OSError:
            return self.offset > 0

    def _object(self, line: bytes, begins: int) -> dict[str, Any]:
        try:
            found = self._parse(line)
        except ValueError as error:
            raise DataError(
                f"{self._path}, byte {begins}: the line is not JSON: {error}", "restore the file, or remove that line"
            ) from None
        if not isinstance(found, dict):
            raise DataError(
                f"{self._path}, byte {begins}: the line is not an object", "restore the file, or remove that line"
            )
        return found


class Story:
    """The events of a run, without those of single trainings and of values for each client, and its `Kept` history."""

    def __init__(self, directory: RunDirectory, parse: Parse = parse_json) -> None:
        """`parse` makes the value of a line, or raises ValueError."""
        self.directory = directory
        self._parse = parse
        self.forget()

    def forget(self) -> None:
        """Forgets all that was read; the next reading begins with the first line."""
        self._of_events = Grown(self.directory.events, self._parse)
        self._of_history = Grown(self.directory.history, self._parse)
        self.events: list[Line] = []
        self._teams: Any = None
        self._history = Kept()
        self.trainings = Trainings()
        self._uncounted = 0
        #: What people call clients; only clients that have names.
        self.names: dict[int, str] = {}
        #: Round -> offset in events.jsonl at which its last beginning stands; of a round that a resumed run has
        #: continued, the beginning before that.
        self.begins: dict[int, int] = {}
        #: The round that is continued, if the last event but those of trainings says so.
        self._continued: Any = None

    @property
    def rows(self) -> Rows:
        """The rows of the history."""
        return self._history.rows

    @property
    def offset(self) -> int:
        """Bytes of events.jsonl that were read."""
        return self._of_events.offset

    @property
    def counted(self) -> bool:
        """Whether `trainings` has all trainings that were read."""
        return not self._uncounted

    def read(self, count: bool = True) -> bool:
        """Reads what is new, and says whether there was anything; raises DataError.

        Without `count`, what was never read before is read without its single trainings, which take most of the time;
        `count` reads them later. A resumed run may have removed rows of its history. After an error, the next call
        reads all anew: nothing of a damaged record is taken for all of it.
        """
        try:
            return self._read(count)
        except Exception:
            self.forget()
            raise

    def _read(self, count: bool) -> bool:
        if self._of_events.was_cut():
            self.forget()
        before = self.offset, len(self.rows)
        if not count and not self.offset:
            for begins, event in self._of_events.new(trainings=False):
                self._take(event, begins)
            self._uncounted = self.offset
        for begins, event in self._of_events.new():
            self._take(event, begins)
        if self._of_history.was_cut():
            self._forget_history()
        if self.directory.history.exists():
            for begins, row in self._of_history.new():
                self._history.add(_checked(row, HISTORY, self.directory.history, begins))
        return before != (self.offset, len(self.rows))

    def count(self) -> tuple[int, Trainings]:
        """What was left out, for `add_counted`, and up to which byte; raises DataError. Another thread may read."""
        found, until = Trainings(), self._uncounted
        for begins, event in Grown(self.directory.events, self._parse).new(trainings=True):
            if begins >= until:
                break
            found.add(event)
        return until, found

    def add_counted(self, until: int, found: Trainings) -> None:
        """Takes the trainings that were left out, unless all was forgotten since."""
        if until != self._uncounted:
            return
        self.trainings = found.before(self.trainings)
        self._uncounted = 0

    def _take(self, event: Line, begins: int) -> None:
        kind = event.get("event")
        if kind == "hop_finished":
            self.trainings.add(event)
            return
        if kind == "round_started":  # pictures are drawn of it; whoever reads other events bears what is odd in them
            _checked(event, EVENTS, self.directory.events, begins)
            event["teams"] = self._teams = shared(event.get("teams"), self._teams)
        if kind not in _BY_CLIENT:
            self.events.append(event)
        if isinstance(named := event.get("names"), dict):
            self.names |= {int(one): name for one, name in named.items() if is_client(one) and isinstance(name, str)}
        continued, self._continued = self._continued, event.get("round") if kind == "round_resumed" else None
        if kind == "round_started" and type(event.get("round")) is int:
            if event["round"] != continued or continued not in self.begins:
                self.begins[event["round"]] = begins
        elif kind == "run_resumed":
            self._forget_history()

    def _forget_history(self) -> None:
        self._of_history = Grown(self.directory.history, self._parse)
        self._history = Kept()


def _checked(line: Line, columns: Columns, path: Path, begins: int) -> Line:
    """The line, which begins at this byte; raises DataError if a value is wrong for its column."""
    if wrong := wrong_in(line, columns):
        raise DataError(f"{path}, byte {begins}: {wrong}", "restore the file")
    return line


def _of_kind(lines: Sequence[bytes], trainings: bool | None) -> list[tuple[int, bytes]]:
    """The lines with their places; all, or those of trainings, or the others. A long run has a million of them."""
    if trainings is None:
        return list(enumerate(lines))
    return [(place, line) for place, line in enumerate(lines) if (_TRAINING in line[:_KIND_WITHIN]) is trainings]
