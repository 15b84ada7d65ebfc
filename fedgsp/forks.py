"""Children that the user's code forks, as `multiprocessing` does: signals to them are theirs alone.

asyncio hears of a signal by a byte in a pipe, which the handler writes. A forked child would inherit handler and pipe:
what ends the child (`Pool` sends it SIGTERM) would stop this process, and the child would go on.
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
    """While this process's loop handles these signals, they have their default effect on its forked children."""
    _handled.update(numbers)
    try:
        yield
    finally:
        _handled.clear()


def _hold_signals() -> None:
    """Until the child has handlers of its own: it may be told to end before it has run a line."""
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
