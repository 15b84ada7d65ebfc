"""Memory that models are in: where it comes from, and what becomes of it when they go."""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

_CACHE_LINE = 64
#: Larger blocks of the C library come from the system and go back to it at once; chunks of models are far smaller.
_KEPT_BYTES = 16 << 20
#: Free memory at the end of the heap that stays: a few chunks; at work, what one step frees and the next one takes.
_FREE_BYTES, _FREE_AT_WORK_BYTES = 8 << 20, 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Models of this size and up to that one have pages of their own, of which one set is kept for the next model.
_PAGED_BYTES, _MOST_SPARE_BYTES = 1 << 20, 64 << 20

_spare: deque[mmap.mmap] = deque(maxlen=1)


def room(size: int) -> NDArray[np.uint8]:
    """Uninitialised bytes that begin on a cache line: vector instructions are up to twice as fast on those."""
    if size >= _PAGED_BYTES:
        pages = _pages(size)
        made = np.frombuffer(pages, np.uint8)
        if size <= _MOST_SPARE_BYTES:
            weakref.finalize(made, _spare.append, pages).atexit = False  # when its last view is gone
        return made
    spare = np.empty(size + _CACHE_LINE, np.uint8)
    start = -spare.ctypes.data % _CACHE_LINE
    return spare[start : start + size]


def new_pages(size: int) -> mmap.mmap:
    """Zeroed private pages, huge ones where the system has them: small ones take five times as long to get."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def drop_spare() -> None:
    """Gives back the pages that are kept for a next model: there will be none for a while."""
    _spare.clear()


def keep_freed() -> None:
    """Lets the process keep what it frees: getting pages again costs as much as a copy.

    To be called before there are threads. Does nothing where the C library is not glibc.
    """
    if _glibc is not None:
        _glibc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        _glibc.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
        # gRPC frees in one thread what it took in another; with a heap for each, little is found again.
        _glibc.mallopt(_M_ARENA_MAX, 1)


def at_work() -> None:
    """Keeps all that is freed: activations of convolutions would go back after every step, and cost a third of it."""
    if _glibc is not None:
        _glibc.mallopt(_M_TRIM_THRESHOLD, _FREE_AT_WORK_BYTES)


def at_rest() -> None:
    """Gives back what was kept at work."""
    if _glibc is not None:
        _glibc.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
        _glibc.malloc_trim(ctypes.c_size_t(_FREE_BYTES))


def _library() -> ctypes.CDLL | None:
    """The C library, if it is one with these settings."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


_glibc = _library()


def _pages(size: int) -> mmap.mmap:
    try:
        pages = _spare.pop()
    except IndexError:
        return new_pages(size)
    return pages if len(pages) == size else new_pages(size)
