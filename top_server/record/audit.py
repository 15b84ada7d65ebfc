"""The audit log of a run: who was let in, who was refused, what was asked of whom, and what was signed for it.

`top_server.audit` verifies it, and docs/audit.md describes its lines.
"""

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from fedgsp.security.access import Caller
from fedgsp.security.chained import ChainedFile
from fedgsp.security.signing import Signer
from fedgsp.seldom import is_told
from fedgsp.times import stamp
from fedgsp.visible import visible
from top_server.record.history import plain
from top_server.record.room import waiting_for_room

#: The first word of every text that is signed for a log.
PURPOSE = "fedgsp audit 1"
#: Numbers of orders that a resumed run leaves out. A power cut may remove the last lines of the log, and nodes may
#: still have the orders of these lines. No run has so many orders.
_MARGIN = 1 << 32


def serials(last: int, now_ns: int) -> Iterator[int]:
    """Numbers for the orders to managers, after `last`, the largest one in the log (0: the log has none).

    They begin with the time, so that runs have different numbers. The time alone would not do for a resumed run: the
    clock may have been set back since.
    """
    return itertools.count(max(now_ns, last + _MARGIN if last else 0))


class Audit:
    """Takes the lines of an audit log. This class keeps none of them: it is for a run without a log, as in a test."""

    def __init__(self, last_serial: int = 0) -> None:
        #: Numbers the orders to managers. A log that is continued goes on after `last_serial`.
        self.serials = serials(last_serial, time.time_ns())

    def note(self, what: str, **fields: Any) -> None:
        """Notes one thing that happened."""

    def seal(self, run: str, round_number: int) -> None:
        """Signs all lines so far, at the end of a round. `run` is this run, or the local run before it."""


NO_AUDIT = Audit()


def who(caller: Caller) -> str:
    """How the log names a process that joins: by its certificate; without TLS, by the key that it has shown."""
    if caller.proven is not None:
        return str(caller.proven)
    return "local user" if caller.reader is not None else "unproven"


class Fetches:
    """Notes the models that one process gave to others.

    Of one model and one reader, the first, tenth, hundredth, ... time have a line: a ticket may be used many times
    and must not fill the log.
    """

    def __init__(self, audit: Audit, at: str, there: Callable[[str], bool] = lambda _: True) -> None:
        """`there` says whether the process `at` still has a model; of others, nothing is remembered."""
        self._audit, self._at, self._there = audit, at, there
        self._so_far: dict[str, Counter[tuple[str, str]]] = {}

    def note(self, model: str, reader: str, caller: str, size: int) -> None:
        """A model of `size` bytes was given to `reader`, whose certificate names `caller`."""
        if model not in self._so_far:
            self._so_far = {of: counts for of, counts in self._so_far.items() if self._there(of)}
        counts = self._so_far.setdefault(model, Counter())
        counts[reader, caller] += 1
        number = counts[reader, caller]
        if is_told(number):
            told = {"at": self._at, "model": visible(model), "reader": visible(reader), "caller": visible(caller)}
            self._audit.note("fetched", **told, bytes=size, so_far=number)


def seal_text(run: str, line: int, head: str) -> bytes:
    """The text that the top server signs. `head` is the hash of the line before `line`; it covers all lines before."""
    return json.dumps([PURPOSE, run, line, head], separators=(",", ":")).encode()


class AuditLog(Audit, contextlib.AbstractContextManager["AuditLog"]):
    """Writes audit.jsonl of a run directory until its `with` block ends. Only one thread may use it."""

    def __init__(
        self,
        path: Path,
        run: str,
        signer: Signer | None,
        round_number: int = 0,
        now: Callable[[tzinfo], datetime] = datetime.now,
        last_serial: int = 0,
    ) -> None:
        """Continues a log that is there, up to this round and this number of an order.

        Without a signer, as without TLS, nothing is signed. Raises BrokenError if the lines do not fit, or RunError.
        """
        super().__init__(last_serial)
        self._run = run
        #: The last round of this run that ended.
        self._round = round_number
        self._signer = signer
        self._now = now
        self._file = ChainedFile(path)
        self._append = waiting_for_room(self._file.append)
        self._closed = False

    def note(self, what: str, **fields: Any) -> None:
        """Notes one thing that happened, unless the log is closed; raises RunError if the disk is full."""
        if self._closed:
            return
        self._append(plain({"time": stamp(self._now(UTC)), "what": what, **fields}))

    def seal(self, run: str, round_number: int) -> None:
        """Signs all lines so far, at the end of a round. `run` is this run, or the local run before it."""
        text = seal_text(self._run, self._file.number + 1, self._file.head)
        signature = self._signer.sign(text).hex() if self._signer is not None else None
        self.note("sealed", run=run, round=round_number, signature=signature)
        if run == self._run:
            self._round = round_number

    def close(self, finished: bool, reason: str) -> None:
        """Notes that the top server ends, and signs; only a resumed run adds further lines."""
        self.note("finished" if finished else "stopped", reason=reason)
        self.seal(self._run, self._round)
        self._closed = True

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()
