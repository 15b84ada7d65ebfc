"""Reads files that somebody else may have made: only regular files, within bounds, and without a surprise.

And writes files that nobody else may read.
"""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from fedgsp.errors import RunError, not_written

#: Most bytes of a file of settings, of a record or a document of a run, and of keys or
#: certificates.
MOST_OF_SETTINGS, MOST_OF_RECORD, MOST_OF_PEM = 1 << 22, 1 << 32, 1 << 20
#: Most bytes of a line of a record. The largest one names all clients of a round.
MOST_LINE = 1 << 26
LONG_LINE = "a line is longer than any that is written"

_NOT_REGULAR = "it is not a regular file"
_TOO_DEEP = "it is nested too deeply"


def read_file(path: Path, most_bytes: int = MOST_OF_RECORD) -> bytes:
    """The content of a regular file; OSError with the reason for anything else, and for a larger file.

    A FIFO would let the reader wait for ever, and a device such as /dev/zero never ends.
    """
    return read_secret(path, most_bytes)[0]


def read_text(path: Path, most_bytes: int = MOST_OF_RECORD) -> str:
    """The content of a regular file in UTF-8; OSError as `read_file`, UnicodeDecodeError for other bytes."""
    return read_file(path, most_bytes).decode("utf-8")


def read_secret(path: Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """As `read_file`, with the owner and the access rights of the file that was read, not of one put in its place."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        content = bytearray()
        while len(content) <= most_bytes and (part := file.read(min(most_bytes + 1 - len(content), 1 << 20))):
            content += part
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes")
    return bytes(content), status


def write_secret(path: Path, content: bytes, lasting: bool = True) -> None:
    """Puts a file in its place at once, for this user alone: a reader sees the old file or the new one.

    A `lasting` file survives a power cut. Raises RunError if the file cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
        if lasting:
            sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise not_written(path, error) from error


def in_place(path: str, flags: int) -> int:
    """An opener for `open`: raises OSError if the path ends in a link, or if the file has other names, too.

    A run directory may come from somebody else, and a link in it would lead to other files of this user.
    """
    # Opening a FIFO would wait for its reader. A file must not be emptied before it is known to be no other one.
    descriptor = os.open(path, (flags | os.O_NOFOLLOW | os.O_NONBLOCK) & ~os.O_TRUNC, 0o666)
    try:
        check_only_name(descriptor)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, path) from None
    return descriptor


def check_only_name(descriptor: int) -> None:
    """Raises OSError unless an open file is a regular one that has no second name (hard link)."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, _NOT_REGULAR)
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is the same file as another one (a hard link)")


def appending(path: Path) -> FileIO:
    """A file opened to append to it, without a buffer; OSError also if it is a link (`in_place`)."""
    return open(path, "ab", buffering=0, opener=in_place)


def fresh(path: Path, mode: int = 0o666) -> FileIO:
    """A new file to write, without a buffer; what had its name is removed, so that no link is followed."""
    path.unlink(missing_ok=True)
    return open(path, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, mode))


def put(path: Path, content: bytes) -> None:
    """Puts a file in its place at once, where it replaces a link and does not follow it; raises OSError."""
    aside = path.with_name(f".{path.name}.new")
    try:
        with fresh(aside) as file:
            write_all(file, content)
        sync(aside)  # otherwise a power cut may leave neither the old file nor the new one
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # or it takes room on a full disk
            aside.unlink(missing_ok=True)
        raise


def write_all(file: FileIO, content: bytes | memoryview) -> None:
    """Writes all bytes to an unbuffered file, which may take only some of them at once; raises OSError."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def sync(path: Path) -> None:
    """Makes sure that the bytes of a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_version(path: os.PathLike[str]) -> tuple[int, ...]:
    """What distinguishes two versions of a file; empty if it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def check_regular(path: Path) -> None:
    """Raises OSError unless `path` is a regular file, for readers that open a file by its name."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, _NOT_REGULAR)


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file for reading; raises OSError with the reason for anything else, and never waits."""
    try:
        # Opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a NUL byte in the path
        raise OSError(errno.EINVAL, str(error)) from None
    file = open(descriptor, "rb")  # noqa: SIM115 - its reader closes it
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, _NOT_REGULAR)
    return file


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file up to its last newline, read one by one; OSError for a line that is longer than any.

    A last line without a newline is left out: its writer was interrupted, or is still writing.
    """
    while (line := file.readline(MOST_LINE)).endswith(b"\n"):
        yield line
    if len(line) == MOST_LINE:
        raise OSError(errno.EFBIG, LONG_LINE)


def check_line(path: object, line: bytes) -> None:
    """Raises RunError for a line that no reader of a record would take: the record could not be read any more."""
    RunError.require(
        len(line) < MOST_LINE,
        f"{path} gets no line of {len(line):,} bytes: a reader takes fewer than {MOST_LINE:,}",
        "a node has sent too much, or the run has too many clients: see the events before",
    )


def parse_json(text: bytes | str, finite: bool = True) -> Any:
    """The value of a JSON text; ValueError for any other text.

    Objects with a repeated name are refused, and so are texts that are nested too deeply for Python; with `finite`,
    also NaN and infinity, which JSON does not have.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse if finite else None)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; ValueError for any other text, and for one that is nested too deeply for Python."""
    import tomllib  # here, because group managers read no TOML and start faster without it

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {repeated[:60]!r} is repeated")
    return found


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user alone; raises RunError."""
    try:
        for one in (*reversed(folder.parents), folder):
            one.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error
