"""Large models in files that have no name: the kernel may write their pages out, and takes the files with the process.

A process that folds or passes models on looks at each byte once or twice, in order; what it has looked at need not
count as its memory. What `walk` yields of other arrays is the same, with nothing to let go.
"""

from __future__ import annotations

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
    """Pages whose values stay when they are let go."""


#: Smaller models are not worth a file.
SPILLED_BYTES = 64 << 20
#: Bytes of an array that are looked at before they are let go.
_PIECE = 4 << 20


def spilling_room(size: int) -> NDArray[np.uint8]:
    """Room in a file for a large model; in memory for others, or where no file can be had."""
    made = _in_file(size)
    return room(size) if made is None else made


def at_rest(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The array, or a copy of it in a file if it is large."""
    copy = _in_file(len(array)) if _mapping(array) is None else None
    if copy is None:
        return array
    done = 0
    for piece in walk(copy):
        piece[...] = array[done : done + len(piece)]
        done += len(piece)
    return copy


def walk(array: NDArray[Scalar], piece_bytes: int = _PIECE) -> Iterator[NDArray[Scalar]]:
    """The pieces of a flat array, in order; what lies behind in a file is no longer in this process's memory."""
    step = max(1, piece_bytes // array.itemsize)
    for start in range(0, len(array), step):
        piece = array[start : start + step]
        yield piece
        let_go(piece)


def let_go(array: NDArray[Any]) -> None:
    """Takes a contiguous array that is in a file out of this process's memory; its values stay."""
    mapping = _mapping(array)
    if mapping is not None:
        start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def _directory() -> Path:
    # Not the usual one, which may well be memory.
    return Path(os.environ.get("TMPDIR") or "/var/tmp")


def _in_file(size: int) -> NDArray[np.uint8] | None:
    """Room in a file; None if so little is not worth one, or none can be had."""
    if size < SPILLED_BYTES:
        return None
    try:
        with tempfile.TemporaryFile(dir=_directory(), prefix="fedgsp-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would end the process when it writes
            return np.frombuffer(_FilePages(file.fileno(), size), np.uint8)
    except OSError as error:
        logger.warning("a model of %d bytes stays in memory: %s: %s", size, _directory(), error.strerror)
        return None


def _mapping(array: NDArray[Any]) -> _FilePages | None:
    """The file's pages that an array is a view of; None if it is in other memory."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, _FilePages) else None
