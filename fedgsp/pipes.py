"""Pipes between two processes of one machine: the receiver copies a model straight from the memory of its sender."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: The values of the setting --hand-over.
HAND_OVERS = ("auto", "network")
#: Bytes that are in a pipe at most. The system lets every user have this many in up to 64 pipes.
PIPE_BYTES = 1 << 20
#: Smaller models are faster through a socket, because a pipe must be opened first.
LEAST_BYTES = 1 << 20
#: Largest number of pipes that a process offers at once: peers that ask for models must not use up its descriptors.
MOST = 32
_NAME = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/([0-9a-f]{32})", re.ASCII)
_CARD = re.compile(rb"([0-9]{1,9}) ([0-9]{1,20})")

_PREFIX = "fedgsp-"  # of the names of files in memory
_NOT_NOW = 2  # SPLICE_F_NONBLOCK

_offered = 0
_allowed = True


class _Part(ctypes.Structure):
    """The system's `struct iovec`."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Outlet:
    """The sender's end of a pipe, which another process of this user on this machine can open by `name`.

    The pipe holds references to the memory of the sender. So what was put must not change until it was taken.
    """

    def __init__(self) -> None:
        """Raises OSError if the system provides no pipe of that size."""
        global _offered
        with contextlib.ExitStack() as undo:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, writing)
            undo.callback(os.close, reading)
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            # Pipes have no names that a stranger could not guess, so a file in memory that has one tells of the pipe.
            token = os.urandom(16).hex()
            card = os.memfd_create(f"{_PREFIX}{token}", os.MFD_CLOEXEC)
            undo.callback(os.close, card)
            os.write(card, b"%d %d" % (reading, os.fstat(reading).st_ino))
            os.set_blocking(writing, False)
            #: Becomes writable when there is room in the pipe.
            self.descriptor = writing
            self.name = f"{os.getpid()}/{card}/{token}"
            self._for_the_receiver = [reading, card]
            undo.pop_all()
        _offered += 1

    def was_opened(self) -> None:
        """The receiver has opened the pipe: nobody else can do so any more, and if it goes, this end notices."""
        while self._for_the_receiver:
            os.close(self._for_the_receiver.pop())

    def put(self, part: NDArray[np.uint8]) -> int:
        """Put contiguous bytes into the pipe, as far as there is room; returns their number.

        Raises BrokenPipeError if the receiver has gone.
        """
        return _splice(self.descriptor, part.ctypes.data, part.nbytes) if part.nbytes else 0

    def close(self) -> None:
        """The receiver finds the end of the pipe when it has taken what was put."""
        global _offered
        self.was_opened()
        os.close(self.descriptor)
        _offered -= 1


class Inlet:
    """The receiver's end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` does not block."""
        #: Becomes readable when bytes came, or the sender has closed its end.
        self.descriptor = descriptor

    def take(self, into: memoryview) -> int | None:
        """Copy the next bytes into memory; returns how many: 0 after the end, None if none came."""
        try:
            return os.readv(self.descriptor, [into])
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Take no more."""
        os.close(self.descriptor)


def choose(hand_over: str) -> None:
    """Set whether this process sends and receives models through pipes (`auto`) or never (`network`)."""
    global _allowed
    _allowed = hand_over == HAND_OVERS[0]


def machine() -> str:
    """A text that is equal for processes that can open each other's pipes; empty if there are no such pipes."""
    return _machine() if _allowed else ""


def is_here(peer: str) -> bool:
    """Whether a peer is on this machine, by the text that it sent, so that it can be offered a pipe."""
    return bool(peer) and peer == machine()


def offer() -> Outlet | None:
    """A new pipe to send a model through; None if there are too many, or the system provides none."""
    if _offered >= MOST:
        return None
    try:
        return Outlet()
    except OSError:
        return None


def opened(name: str) -> Inlet:
    """The pipe of another process; raises OSError if there is no such pipe, or it cannot be opened."""
    parts = _NAME.fullmatch(name)
    if parts is None or not machine():
        raise OSError(f"{name[:60]!r} names no pipe of this machine")
    process, number, token = parts.groups()
    card = f"/proc/{process}/fd/{number}"
    if os.readlink(card) != f"/memfd:{_PREFIX}{token} (deleted)":
        raise OSError(f"{card} tells of no pipe {token}")
    told = _CARD.fullmatch(_read(card))
    if told is None:
        raise OSError(f"{card} does not tell of a pipe")
    # Without O_NONBLOCK, opening waits for a sender.
    descriptor = os.open(f"/proc/{process}/fd/{int(told[1])}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != int(told[2]):
        os.close(descriptor)
        raise OSError(f"pipe {token} of process {process} is gone")
    return Inlet(descriptor)


def _read(path: str) -> bytes:
    # The descriptor may be something else by now; without O_NONBLOCK, opening it may wait forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.pread(descriptor, 64, 0)
    finally:
        os.close(descriptor)


def _splice(descriptor: int, start: int, size: int) -> int:
    """Put the pages of this memory into a pipe, as far as there is room in it; returns the number of bytes."""
    put: int = _vmsplice()(descriptor, ctypes.byref(_Part(start, size)), 1, _NOT_NOW)
    if put >= 0:
        return put
    number = ctypes.get_errno()
    if number in (errno.EAGAIN, errno.EINTR):
        return 0
    raise OSError(number, os.strerror(number))


@functools.cache
def _vmsplice() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).vmsplice
    function.argtypes = (ctypes.c_int, ctypes.POINTER(_Part), ctypes.c_size_t, ctypes.c_uint)
    function.restype = ctypes.c_ssize_t
    return function


@functools.cache
def _machine() -> str:
    """A digest of user, boot and namespaces (processes, network, users) of this process.

    A process in another network namespace counts as another machine, because traffic between the two is meant to pass
    that network.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user")]
        with contextlib.closing(Outlet()) as outlet:
            outlet.put(np.zeros(1, np.uint8))
    except (OSError, AttributeError):  # not on every system, and a sandbox may allow less
        return ""
    return hashlib.sha256("|".join([boot, str(os.getuid()), *spaces]).encode()).hexdigest()
