"""A cache of decoded data files. All processes of a machine map the same pages, so the data are in memory once.

The cache is in the directory FEDGSP_CACHE (an environment variable), or else in `fedgsp` in the user's cache
directory. It may be removed at any time.
"""

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgsp.task import Split

Arrays: TypeAlias = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)

#: Must be increased when a decoder changes so that it returns other arrays for the same files.
VERSION = 1
#: Files with fewer bytes in total are not cached: decoding them again is about as fast as reading the cache.
SMALL = 1 << 20
#: How long a process waits for another process that decodes the same files; then it decodes them without the cache.
WAIT_S = 120.0
_LOOK_S = 0.05
#: The file of an entry that lists the names of its arrays, so that a missing array is noticed.
_NAMES = "names"


def decoded(kind: str, sources: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """The arrays that `decode` makes from the files `sources`; for large files mapped read-only from the cache.

    `kind` names the decoder. The cache holds one entry per kind and file, or per kind and folder of several files; it
    is replaced when a file changes. Raises what `decode` raises. A failing cache is only logged.
    """
    try:
        found = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    except OSError:
        return decode()  # it raises an error that names the file
    if sum(size for _, size, _ in found) < SMALL:
        return decode()
    try:
        own = _directory() / _name(kind, os.path.commonpath([path for path, _, _ in found]))
        if own.exists() and own.stat().st_uid != os.geteuid():
            raise OSError(f"{own} belongs to another user")  # who could have put other data there
        entry = own / _name(VERSION, *found)
        held = _mapped(entry)
        if not held:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _turn(own):
                held = _mapped(entry)  # another process may have written it during the wait
                if not held:
                    _write(entry, decode())
                    held = _mapped(entry)
        if not held:
            raise OSError("the entry cannot be read after writing")
        return held
    except (OSError, RuntimeError) as error:
        logger.warning(
            "decoded data cannot be cached (%s), so every process keeps a copy in its memory;"
            " set FEDGSP_CACHE to another directory",
            error,
        )
    return decode()


def decoded_split(kind: str, sources: Sequence[Path], decode: Callable[[], Split]) -> Split:
    """Like `decoded`, for the inputs and labels of one part of a data set."""

    def arrays() -> Arrays:
        part = decode()
        return {"x": part.x, "y": part.y}

    return Split(**decoded(kind, sources, arrays))


def rows_of(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """A copy of some rows of an array. If the array is a mapped file, its pages are released from this process."""
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
    """The arrays of an entry; an empty dict if the entry is missing or damaged."""
    try:
        names = (entry / _NAMES).read_text().split()
        # A plain view: every slice of a memmap object would look up its file again, which is slow.
        return {name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in names}
    except (OSError, ValueError, EOFError):
        return {}


@contextlib.contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """Locks a directory against other processes; the system unlocks it if this process dies. Raises TimeoutError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process has been decoding these files for {WAIT_S:.0f} s") from None
                time.sleep(_LOOK_S)
        yield
    finally:
        os.close(handle)


def _write(entry: Path, arrays: Arrays) -> None:
    """Replaces all entries of the directory by a new one. Processes that have mapped an old entry can still use it."""
    for old in list(entry.parent.iterdir()):
        shutil.rmtree(old, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(dir=entry.parent))
    try:
        for name, array in arrays.items():
            with (aside / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())  # otherwise a crash of the machine may leave a file of zeros
        (aside / _NAMES).write_text("\n".join(arrays))
        aside.rename(entry)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
