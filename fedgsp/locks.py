"""Locks on files, which are a safeguard and not relied on: not every shared file system has them."""

import errno
import fcntl
import logging
from typing import IO

logger = logging.getLogger(__name__)

#: Error numbers of a file system without locks, such as Lustre unless it is mounted with `flock`.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def try_lock(file: IO[bytes]) -> bool:
    """Locks a file until this process closes it or ends; False if another process has the lock.

    True, with a line in the log, if the file system has no locks. Raises OSError for other failures.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.info("%s is not locked: its file system has no locks (%s)", file.name, error.strerror)
    return True
