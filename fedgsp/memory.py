"""What the allocator does with memory that models were in."""

from __future__ import annotations

import ctypes
import sys

#: Larger blocks always come from the system, zeroed; 32 MiB is the most that glibc takes.
_KEPT_BYTES = 32 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed() -> None:
    """Lets the process keep what it frees, for the next model: getting pages again costs as much as a copy.

    To be called before there are threads. Does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        # gRPC frees in one thread what it took in another; with a heap for each, little is found again.
        mallopt(_M_ARENA_MAX, 1)
