"""For the imports of a template: its second fork fails, as on a machine without room for another process."""

import errno
import itertools
import os

_fork, _numbers = os.fork, itertools.count(1)


def fork() -> int:
    if next(_numbers) == 2:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


os.fork = fork
