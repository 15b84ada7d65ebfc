"""For a template that imports it: the operating system refuses its second fork, as with too many processes."""

from __future__ import annotations

import errno
import os

_fork, _count = os.fork, 0


def _refused() -> int:
    global _count
    _count += 1
    if _count == 2:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


os.fork = _refused  # of this process alone
