"""A run whose disk is full waits until somebody has made room: the nodes keep what they have meanwhile."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, ParamSpec, TypeVar

from fedgsp.errors import RunError, is_full, not_written
from fedgsp.files import put
from fedgsp.processes import lifecycle

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds between two tries, and until the run ends. Nodes look for a lost top server for an hour.
AGAIN_S, MOST_S = 1.0, 3600.0


class _Disk:
    """The disk of the run directory."""

    #: Since when it is full, by the monotonic clock; None if it is not.
    full_since: float | None = None
    #: One object for each write that waits. While a large one waits, there is room for small ones alone.
    waiting: ClassVar[set[object]] = set()


def waiting_for_room(write: Callable[P, T]) -> Callable[P, T]:
    """`write`, tried again while the disk is full; it must be able to begin anew.

    `write` raises RunError, from the error of the operating system. The error is raised if it has another reason, if
    this process is asked to end, and after `MOST_S` seconds. In the thread of the event loop nothing else happens
    meanwhile: for the nodes, the top server stands still.
    """

    @functools.wraps(write)
    def patient(*given: P.args, **named: P.kwargs) -> T:
        this = object()
        try:
            while True:
                try:
                    result = write(*given, **named)
                    break
                except RunError as error:
                    if not is_full(error.__cause__):
                        raise
                    _Disk.waiting.add(this)
                    if not _is_worth_waiting(error):
                        raise
        finally:
            _Disk.waiting.discard(this)
        if not _Disk.waiting:
            _has_room()
        return result

    return patient


@contextlib.contextmanager
def dispensable(over: bool) -> Iterator[None]:
    """Does without lines that cannot be written, if the run is `over` or this process is asked to end.

    Whoever ends the run tells the reason.
    """
    try:
        yield
    except RunError:
        if not over and not lifecycle.is_ending():
            raise


@waiting_for_room
def write_text(path: Path, text: str) -> None:
    """Writes a file; raises RunError if that fails."""
    try:
        put(path, text.encode())
    except OSError as error:
        raise not_written(path, error) from error


def _is_worth_waiting(error: RunError) -> bool:
    if lifecycle.is_ending():
        return False
    now = time.monotonic()
    if _Disk.full_since is None:
        _Disk.full_since = now
        logger.warning("%s. The run waits for room, for an hour at most", error)
    return now - _Disk.full_since < MOST_S and lifecycle.sleep(AGAIN_S)


def _has_room() -> None:
    if _Disk.full_since is not None and not lifecycle.is_ending():
        logger.warning("there is room again after %.0f s: the run goes on", time.monotonic() - _Disk.full_since)
        _Disk.full_since = None
