"""File descriptors of this process: as many as the system allows, and a part that connections never use up."""

import contextlib
import resource

#: Descriptors that connections leave: for files, models, listeners and child processes.
RESERVED = 256
#: Connections that a server takes in any case.
LEAST = 64


def raise_limit() -> None:
    """Let this process open as many files as the system allows it; by default it is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_connections() -> int:
    """How many connections a server may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(LEAST, min(soft - RESERVED, 1 << 20))
