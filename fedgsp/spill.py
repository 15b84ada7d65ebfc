"""Large models in files without a name: the kernel may write their pages to disk, and removes them with the process.

A process that averages or forwards models reads each byte once or twice, in order. Pages that it has read need not
stay in its memory. `walk` yields the same pieces of arrays that are in memory, which stay there.
"""

import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.memory import room

logger = logging.getLogger(__name__)

Scalar = TypeVar("Scalar", bound=np.generic)
#: Makes uninitialised bytes, shape (size,).
Room = Callable[[int], NDArray[np.uint8]]


class _FilePages(mmap.mmap):
    """Pages of a file. Their values stay when the pages leave the memory of the process."""


#: Smaller models stay in memory.
SPILLED_BYTES = 64 << 20
#: Size of the pieces of an array, in bytes.
_PIECE = 4 << 20


def spilling_room(size: int) -> NDArray[np.uint8]:
    """Uninitialised bytes, shape (size,): in a file for a large model, else in memory, or if no file can be made."""
    made = _in_file(size)
    return room(size) if made is None else made


def at_rest(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The array, or a copy in a file if the array is large and in memory."""
    copy = _in_file(len(array)) if _mapping(array) is None else None
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


def let_go(array: NDArray[Any]) -> None:
    """Release the pages of a contiguous array that is in a file from memory; its values stay."""
    mapping = _mapping(array)
    if mapping is not None:
        start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def _directory() -> Path:
    # Not the usual folder, which may be in memory.
    return Path(os.environ.get("TMPDIR") or "/var/tmp")


def _in_file(size: int) -> NDArray[np.uint8] | None:
    """Uninitialised bytes in a file; None if `size` is small or no file can be made."""
    if size < SPILLED_BYTES:
        return None
    try:
        with tempfile.TemporaryFile(dir=_directory(), prefix="fedgsp-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # otherwise a full disk would end the process at a write
            return np.frombuffer(_FilePages(file.fileno(), size), np.uint8)
    except OSError as error:
        logger.warning("a model of %d bytes stays in memory: %s: %s", size, _directory(), error.strerror)
        return None


def _mapping(array: NDArray[Any]) -> _FilePages | None:
    """The pages of the file behind an array; None if the array is not in a file."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, _FilePages) else None
