"""Large models in files without a name: the kernel may write their pages to disk, and removes them with the process.

A process that averages or forwards models reads each byte once or twice, in order. Pages that it has read need not
stay in its memory. `walk` yields the same pieces of arrays that are in memory, which stay there.
"""

import ctypes
import errno
import functools
import logging
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.tensors.memory import room

logger = logging.getLogger(__name__)

Scalar = TypeVar("Scalar", bound=np.generic)
#: Makes uninitialised bytes, shape (size,).
Room = Callable[[int], NDArray[np.uint8]]


class _FilePages(mmap.mmap):
    """Pages of a file. Their values stay when the pages leave the memory of the process.

    The file has its whole length from the beginning, but takes disk only for the bytes that were reserved: what a peer
    announces may never come.
    """

    descriptor: int  # of the file
    reserved: int  # bytes


#: Smaller models stay in memory.
SPILLED_BYTES = 64 << 20
#: Size of the pieces of an array, in bytes.
_PIECE = 4 << 20
#: Disk that a large model takes before its first byte came.
FIRST_BYTES = 16 << 20
#: The file of a model that is gone, for the next model: new pages of a file cost ten times as much as written ones.
_spare: deque[_FilePages] = deque(maxlen=1)


def spilling_room(size: int) -> NDArray[np.uint8]:
    """Uninitialised bytes, shape (size,): in a file for a large model, else in memory, or if no file can be made."""
    made = _in_file(size, size)
    return room(size) if made is None else made


def growing_room(size: int) -> NDArray[np.uint8]:
    """The same for a model that a peer announces: `reserve` takes the disk for its bytes before they are written."""
    made = _in_file(size, FIRST_BYTES)
    return room(size) if made is None else made


def reserve(array: NDArray[np.uint8], end: int) -> None:
    """Take disk for the first `end` bytes of an array, if it is in a file; each time at least twice as much as before.

    Otherwise a full disk would end the process at a write. Raises OSError if the disk is full.
    """
    pages = _mapping(array)
    if pages is not None and pages.reserved < min(end, len(pages)):
        wanted = min(len(pages), max(end, 2 * pages.reserved))
        os.posix_fallocate(pages.descriptor, pages.reserved, wanted - pages.reserved)
        pages.reserved = wanted


def at_rest(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The array, or a copy in a file if the array is large and in memory."""
    copy = _in_file(len(array), len(array)) if _mapping(array) is None else None
    if copy is None:
        return array
    for target, piece in zip(walk(copy), walk(array), strict=True):
        target[...] = piece
    return copy


def walk(array: NDArray[Scalar], piece_bytes: int = _PIECE) -> Iterator[NDArray[Scalar]]:
    """The pieces of a flat array, in order. If the array is in a file, each piece leaves memory after its use."""
    step = max(1, piece_bytes // array.itemsize)
    for start in range(0, len(array), step):
        piece = array[start : start + step]
        yield piece
        let_go(piece)


def is_in_file(array: NDArray[Any]) -> bool:
    """Whether an array is in a file."""
    return _mapping(array) is not None


def lacks_pages(array: NDArray[np.uint8]) -> bool:
    """Whether an array is in a file, and pages of it are not in memory. Code that uses them waits for the disk."""
    if not is_in_file(array):
        return False
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = array.ctypes.data + array.nbytes - start
    found = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    answer = _mincore()(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data))
    return answer != 0 or not bool((found & 1).all())


def touch(array: NDArray[np.uint8], to_write: bool = False) -> None:
    """Bring all pages of an array into memory; `to_write` sets all of its bytes to zero.

    Other threads of this process go on meanwhile: NumPy lets them during these two operations on many bytes.
    """
    if to_write:
        array[:] = 0
    else:
        np.count_nonzero(array)


def let_go(array: NDArray[Any]) -> None:
    """Release the pages of a contiguous array that is in a file from memory; its values stay."""
    mapping = _mapping(array)
    if mapping is not None:
        start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def spill_folder() -> Path:
    """The folder of the files of large models."""
    # Not the usual folder, which may be in memory.
    return Path(os.environ.get("TMPDIR") or "/var/tmp")


def _in_file(size: int, first: int) -> NDArray[np.uint8] | None:
    """Uninitialised bytes in a file, the first of them reserved; None if `size` is small or no file can be made."""
    if size < SPILLED_BYTES:
        return None
    try:
        pages = _spare.pop() if _spare else None
        if pages is None or len(pages) != size:
            pages = _new_file(size)
        made = np.frombuffer(pages, np.uint8)
        reserve(made, min(size, first))
    except OSError as error:
        logger.warning("a model of %d bytes stays in memory: %s: %s", size, spill_folder(), error.strerror)
        return None
    weakref.finalize(made, _keep, pages).atexit = False  # when its last view is gone
    return made


def _keep(pages: _FilePages) -> None:
    pages.madvise(mmap.MADV_DONTNEED)
    _spare.append(pages)


def _new_file(size: int) -> _FilePages:
    """The pages of a new file without a name; raises OSError if there is no disk for it."""
    with tempfile.TemporaryFile(dir=spill_folder(), prefix="fedgsp-") as file:
        disk = os.fstatvfs(file.fileno())
        if disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file.fileno(), size)
        pages = _FilePages(file.fileno(), size)
        pages.descriptor, pages.reserved = os.dup(file.fileno()), 0
    weakref.finalize(pages, os.close, pages.descriptor).atexit = False
    return pages


@functools.cache
def _mincore() -> Callable[..., int]:
    function: Callable[..., int] = ctypes.CDLL(None).mincore
    return function


def _mapping(array: NDArray[Any]) -> _FilePages | None:
    """The pages of the file behind an array; None if the array is not in a file."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, _FilePages) else None
