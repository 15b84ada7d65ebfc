"""Reads files that somebody else may have made: only regular files, and no more than they may hold."""

import errno
import os
import stat
from pathlib import Path

#: Default of the most bytes of a file: more than any settings or record need.
MOST_BYTES = 1 << 30


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file; OSError with the reason for anything else, and for a larger file.

    A FIFO would let the reader wait for ever, and a device such as /dev/zero never ends.
    """
    return _read(path, most_bytes)[0]


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The content of a regular file in UTF-8; OSError as `read_file`, UnicodeDecodeError for other bytes."""
    return read_file(path, most_bytes).decode("utf-8")


def read_secret(path: Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """As `read_file`, with the owner and the access rights of the file that was read, not of one put in its place."""
    return _read(path, most_bytes)


def _read(path: Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    try:
        # Opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a NUL byte in the path
        raise OSError(errno.EINVAL, str(error)) from None
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = bytearray()
        while len(content) <= most_bytes and (part := file.read(min(most_bytes + 1 - len(content), 1 << 24))):
            content += part
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes")
    return bytes(content), status
