"""Decoded data files, kept once per machine: all processes map the same pages, however many host clients.

They are in FEDGSP_CACHE, or else in `fedgsp` of the user's cache directory, and may be removed at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedgsp.task import Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Arrays: TypeAlias = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)

#: Grows when a decoding gives other arrays for the same files.
VERSION = 1
#: Bytes of files that are decoded by every process for itself: they take less than finding them decoded is worth.
SMALL = 1 << 20
#: How long one process waits for another that decodes the same files, before it does so for itself.
WAIT_S = 120.0
_LOOK_S = 0.05
#: File of an entry that names its arrays: one whose file is gone is missed.
_NAMES = "names"


def decoded(kind: str, sources: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """The arrays that `decode` makes of the files `sources`, mapped read-only if they are worth it.

    Raises what `decode` raises. A file, or a folder of several, has one entry of a kind: that of its present contents.
    """
    try:
        found = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    except OSError:
        return decode()  # which tells what is wrong
    if sum(size for _, size, _ in found) < SMALL:
        return decode()
    try:
        own = _directory() / _name(kind, os.path.commonpath([path for path, _, _ in found]))
        entry = own / _name(VERSION, *found)
        held = _mapped(entry)
        if held:
            return held
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _turn(own):
            held = _mapped(entry)  # somebody else's, whose turn it was
            if not held:
                _write(entry, decode())
                held = _mapped(entry)
            if held:
                return held
        raise OSError("what was written cannot be read back")
    except (OSError, RuntimeError) as error:
        logger.warning(
            "decoded data cannot be kept for other processes (%s): every process has a copy of its own in memory;"
            " FEDGSP_CACHE names another directory",
            error,
        )
    return decode()


def decoded_split(kind: str, sources: Sequence[Path], decode: Callable[[], Split]) -> Split:
    """As `decoded`, for one part of a data set."""

    def arrays() -> Arrays:
        part = decode()
        return {"x": part.x, "y": part.y}

    return Split(**decoded(kind, sources, arrays))


def rows_of(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """A copy of some rows; where the array is mapped, this process does not hold on to its pages."""
    found = array[rows]
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
    return found


def _directory() -> Path:
    if chosen := os.environ.get("FEDGSP_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedgsp"


def _name(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _mapped(entry: Path) -> Arrays:
    """The arrays of an entry; none if it is not there, or damaged."""
    try:
        names = (entry / _NAMES).read_text().split()
        # The plain view, since every slice of a memmap looks for its file again.
        return {name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in names}
    except (OSError, ValueError, EOFError):
        return {}


@contextlib.contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """One process at a time; the system ends the turn of one that dies. Raises TimeoutError, an OSError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process has been decoding for {WAIT_S:.0f} s") from None
                time.sleep(_LOOK_S)
        yield
    finally:
        os.close(handle)


def _write(entry: Path, arrays: Arrays) -> None:
    """Puts an entry in place of all that its directory holds; those who map an old one keep it until they end."""
    for old in list(entry.parent.iterdir()):
        shutil.rmtree(old, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(dir=entry.parent))
    try:
        for name, array in arrays.items():
            with (aside / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())  # else a crash of the machine may leave an entry of zeros
        (aside / _NAMES).write_text("\n".join(arrays))
        aside.rename(entry)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
