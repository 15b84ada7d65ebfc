"""Pipes between two processes of one machine: the receiver copies a model straight from the memory of its sender."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

#: The values of the setting --hand-over.
HAND_OVERS = ("auto", "network")
#: Bytes that are in a pipe at most. The system lets all programs of a user together have 64 such pipes.
PIPE_BYTES = 1 << 20
#: Smaller models are faster through a socket, because a pipe must be opened first.
LEAST_BYTES = 1 << 20
#: Largest number of pipes that a process offers at once: its peers must not use up what its user may have.
MOST = 16
_NAME = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/([0-9a-f]{32})", re.ASCII)
_CARD = re.compile(rb"([0-9]{1,9}) ([0-9]{1,20})")

_PREFIX = "fedgsp-"  # of the names of files in memory
_NOT_NOW = 2  # SPLICE_F_NONBLOCK

_allowed = True
_reason_told = False
_ends: weakref.WeakSet[_End] = weakref.WeakSet()  # that are open


class _Part(ctypes.Structure):
    """The system's `struct iovec`."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _End:
    """An end of a pipe, which is used in threads.

    When `close` returns, no thread uses the descriptor, whose number may then be another file, or the memory that it
    gave to `put` or `take`.
    """

    def __init__(self, descriptor: int) -> None:
        """`descriptor` does not block."""
        #: Becomes readable or writable when there is something to do, and if the other end has gone.
        self.descriptor = descriptor
        self._is_open, self._in_use = True, threading.Lock()
        _ends.add(self)

    def close(self) -> None:
        """Give the end up, unless this was done."""
        with self._in_use:
            if self._is_open:
                self._is_open = False
                _ends.discard(self)
                os.close(self.descriptor)

    def close_after_fork(self) -> None:
        """Give the end up in a child that was forked, where no thread is left that may have used it."""
        self._in_use = threading.Lock()
        self.close()


class Outlet(_End):
    """The sender's end of a pipe, which another process of this user on this machine can open by `name`.

    The pipe holds references to the memory of the sender. So what was put must not change until it was taken.
    """

    def __init__(self) -> None:
        """Raises OSError if the system provides no pipe of that size."""
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
            self.name = f"{os.getpid()}/{card}/{token}"
            self._for_the_receiver = [reading, card]
            super().__init__(writing)
            undo.pop_all()

    def was_opened(self) -> None:
        """The receiver has opened the pipe: nobody else can do so any more, and if it goes, this end notices."""
        while self._for_the_receiver:
            os.close(self._for_the_receiver.pop())

    def put(self, part: NDArray[np.uint8]) -> int:
        """Put contiguous bytes into the pipe, as far as there is room; returns their number.

        Raises BrokenPipeError if the receiver has gone, or this end was closed.
        """
        with self._in_use:
            if not self._is_open:
                raise BrokenPipeError
            return _splice(self.descriptor, part.ctypes.data, part.nbytes) if part.nbytes else 0

    def close(self) -> None:
        """Give the end up. The receiver finds the end of the pipe when it has taken what was put."""
        self.was_opened()
        super().close()


class Inlet(_End):
    """The receiver's end of a pipe."""

    def take(self, into: memoryview) -> int | None:
        """Copy the next bytes into memory; returns how many: 0 after the end or `close`, None if none came."""
        with self._in_use:
            if not self._is_open:
                return 0
            try:
                return os.readv(self.descriptor, [into])
            except BlockingIOError:
                return None


def choose(hand_over: str) -> None:
    """Set whether this process sends and receives models through pipes (`auto`) or never (`network`)."""
    global _allowed
    _allowed = hand_over == HAND_OVERS[0]


def machine() -> str:
    """A text that is equal for processes that can open each other's pipes; empty if there are no such pipes."""
    global _reason_told
    if not _allowed:
        return ""
    try:
        return _machine()
    except (OSError, AttributeError) as error:  # another system, a sandbox, or no descriptors at this moment
        if not _reason_told:
            logger.info("models go through sockets, on this machine too: %s", error)
            _reason_told = True
        return ""


def is_here(peer: str) -> bool:
    """Whether a peer is on this machine, by the text that it sent, so that it can be offered a pipe."""
    return bool(peer) and peer == machine()


def offer() -> Outlet | None:
    """A new pipe to send a model through; None if there are too many, or the system provides none."""
    if sum(isinstance(end, Outlet) for end in _ends) >= MOST:
        return None
    try:
        return Outlet()
    except OSError:
        return None


def opened(name: str) -> Inlet:
    """Open the pipe of another process for reading; raises OSError if it does not exist or cannot be opened."""
    parts = _NAME.fullmatch(name)
    if parts is None or not machine():
        raise OSError(f"{name[:60]!r} names no pipe of this machine")
    process, number, token = parts.groups()
    with _looked_at(process, number, f"/memfd:{_PREFIX}{token} (deleted)") as card:
        with open(card, "rb", buffering=0) as file:
            told = _CARD.fullmatch(file.read(64) or b"")
        if told is None:
            raise OSError(f"{token} does not tell of a pipe")
    with _looked_at(process, str(int(told[1])), f"pipe:[{int(told[2])}]") as pipe:
        return Inlet(os.open(pipe, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))  # otherwise opening waits for a sender


@contextlib.contextmanager
def _looked_at(process: str, number: str, expected: str) -> Iterator[str]:
    """The path of an open file of another process of this user, if it is the expected one; otherwise OSError.

    It is looked at before it is opened: opening may change or stop something, and root may open everything.
    """
    found = os.open(f"/proc/{process}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{found}"
        if os.readlink(path) != expected or os.fstat(found).st_uid != os.geteuid():
            raise OSError(f"descriptor {number} of process {process} is not {expected} of this user")
        yield path
    finally:
        os.close(found)


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
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user")]
    with contextlib.closing(Outlet()) as outlet:  # raises an error if the system has no such pipes
        outlet.put(np.zeros(1, np.uint8))
    return hashlib.sha256("|".join([boot, str(os.getuid()), *spaces]).encode()).hexdigest()


def _close_all() -> None:
    """In a child that was forked: its parent uses the pipes, and must notice if the other end closes them."""
    for end in list(_ends):
        end.close_after_fork()


os.register_at_fork(after_in_child=_close_all)
