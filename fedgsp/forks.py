"""Signals of child processes that the user's code forks, for example through `multiprocessing`.

asyncio notices a signal through a byte in a pipe that the signal handler writes. A forked child would inherit handler
and pipe: a SIGTERM to the child (as from `Pool`) would stop this process, and the child would continue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator

_handled: set[int] = set()
_forking = threading.local()


@contextlib.contextmanager
def kept_apart(numbers: Iterable[int]) -> Iterator[None]:
    """While the block runs, these signals have their default effect on forked children of this process."""
    _handled.update(numbers)
    try:
        yield
    finally:
        _handled.clear()


def _hold_signals() -> None:
    """Block the signals until the child has reset its handlers: a signal may come before its first line runs."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _let_signals_come() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _take_leave_of_the_loop() -> None:
    if _handled:
        signal.set_wakeup_fd(-1)
        for number in _handled:
            signal.signal(number, signal.SIG_DFL)
        _handled.clear()
    _let_signals_come()


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_come, after_in_child=_take_leave_of_the_loop)
