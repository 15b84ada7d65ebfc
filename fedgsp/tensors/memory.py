"""Memory for models: where it comes from, and how it is reused when models are released."""

import ctypes
import mmap
import sys
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

_CACHE_LINE = 64
#: The C library returns larger blocks to the system at once. Chunks of models are far smaller.
_KEPT_BYTES = 16 << 20
#: Free memory at the end of the heap that the process keeps: a few chunks; during training, the memory of a step.
_FREE_BYTES, _FREE_AT_WORK_BYTES = 8 << 20, 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Models of at least the first size have separate pages. Up to the second size, the pages of one model are kept.
_PAGED_BYTES, _MOST_SPARE_BYTES = 1 << 20, 64 << 20

_spare: deque[mmap.mmap] = deque(maxlen=1)
_most_spare_bytes = _MOST_SPARE_BYTES
_times_kept = 0


def room(size: int) -> NDArray[np.uint8]:
    """Uninitialised bytes, shape (size,), that begin on a cache line, which makes vector code up to twice as fast."""
    if size >= _PAGED_BYTES:
        pages = _pages(size)
        made = np.frombuffer(pages, np.uint8)
        if size <= _most_spare_bytes:
            weakref.finalize(made, _keep, pages).atexit = False  # when its last view is gone
        return made
    spare = np.empty(size + _CACHE_LINE, np.uint8)
    start = -spare.ctypes.data % _CACHE_LINE
    return spare[start : start + size]


def new_pages(size: int) -> mmap.mmap:
    """Zeroed private pages; huge pages where the system has them, because small pages take five times as long."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def drop_spare() -> None:
    """Give back the pages that are kept for the next model. Call this when no model will come for a while."""
    _spare.clear()


def keep_large(large: bool) -> None:
    """Keep the pages of a model of any size for the next model, or only those of a small one."""
    global _most_spare_bytes
    _most_spare_bytes = sys.maxsize if large else _MOST_SPARE_BYTES


def times_kept() -> int:
    """How often the pages of a model were kept so far."""
    return _times_kept


def keep_freed() -> None:
    """Let the process keep the memory that it frees, because new pages cost as much time as a copy.

    Call this before threads start. It does nothing where the C library is not glibc.
    """
    if _glibc is not None:
        _glibc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        _glibc.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
        # gRPC allocates in one thread and frees in another. With a heap for each thread, little memory is reused.
        _glibc.mallopt(_M_ARENA_MAX, 1)


def at_work() -> None:
    """Keep all freed memory during training.

    Otherwise the memory of activations would go back to the system after each step, at a third of the step's time.
    """
    if _glibc is not None:
        _glibc.mallopt(_M_TRIM_THRESHOLD, _FREE_AT_WORK_BYTES)


def at_rest() -> None:
    """Give the memory that was kept during training back to the system."""
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


def _keep(pages: mmap.mmap) -> None:
    global _times_kept
    _times_kept += 1
    _spare.append(pages)


def _pages(size: int) -> mmap.mmap:
    try:
        pages = _spare.pop()
    except IndexError:
        return new_pages(size)
    return pages if len(pages) == size else new_pages(size)
