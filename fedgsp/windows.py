"""Shared memory between two processes of one machine: bytes that pass through it are not copied through a socket."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import mmap
import os
import re
import weakref
from collections import deque
from pathlib import Path

#: The values of the setting --hand-over.
HAND_OVERS = ("auto", "network")
#: A sender fills one slot while the receiver empties another.
SLOTS, SLOT_BYTES = 2, 4 << 20
WINDOW_BYTES = SLOTS * SLOT_BYTES
#: Smaller models are faster through a socket, because a window must be opened first.
LEAST_BYTES = 1 << 20
#: Largest number of windows of a process: peers that ask for models must not use up its memory and descriptors.
MOST = 8
#: Number of windows that are kept for the next models: new pages cost more time than a copy.
_SPARE = 2
_NAME = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/([0-9a-f]{32})", re.ASCII)

_PREFIX = "fedgsp-"  # of the names of files in memory

_made: weakref.WeakSet[Window] = weakref.WeakSet()
_spare: deque[Window] = deque(maxlen=_SPARE)
_allowed = True


class Window:
    """Slots of memory that other processes of this user on this machine can open by `name`."""

    def __init__(self, pages: mmap.mmap, name: str) -> None:
        self.name = name
        self._bytes = memoryview(pages)

    def slot(self, number: int) -> memoryview:
        """The memory for the bytes of message `number`, counted from 0."""
        start = number % SLOTS * SLOT_BYTES
        return self._bytes[start : start + SLOT_BYTES]


def choose(hand_over: str) -> None:
    """Set whether this process sends and receives models through windows (`auto`) or never (`network`)."""
    global _allowed
    _allowed = hand_over == HAND_OVERS[0]


def machine() -> str:
    """A text that is equal for processes that can open each other's windows; empty if there are no windows."""
    return _machine() if _allowed else ""


def is_here(peer: str) -> bool:
    """Whether a peer is on this machine, by the text that it sent, so that it can be offered a window."""
    return bool(peer) and peer == machine()


def lend() -> Window | None:
    """A window to send a model through; None if there are too many windows, or the system provides none."""
    if _spare:
        return _spare.pop()
    if len(_made) >= MOST:
        return None
    try:
        window = _make()
    except OSError:
        return None
    _made.add(window)
    return window


def give_back(window: Window) -> None:
    """Keep a window for the next model. Call this only if no receiver reads the window any more."""
    _spare.append(window)


def drop_spare() -> None:
    """Give back the memory that is kept for the next models."""
    _spare.clear()


def opened(name: str) -> Window:
    """A window of another process, for reading; raises OSError if there is no such window, or it cannot be opened."""
    parts = _NAME.fullmatch(name)
    if parts is None or not machine():
        raise OSError(f"{name[:60]!r} names no window of this machine")
    process, number, token = parts.groups()
    path = f"/proc/{process}/fd/{number}"
    if os.readlink(path) != f"/memfd:{_PREFIX}{token} (deleted)":
        raise OSError(f"{path} is not window {token}")
    # The descriptor may be a pipe by now; without O_NONBLOCK, opening a pipe may wait forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # A file that its owner could shrink later could end this process (SIGBUS).
        if os.fstat(descriptor).st_size != WINDOW_BYTES or ~fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _seals():
            raise OSError(f"{path} is no window of {WINDOW_BYTES} bytes")
        return Window(mmap.mmap(descriptor, WINDOW_BYTES, prot=mmap.PROT_READ), name)
    finally:
        os.close(descriptor)


def _make() -> Window:
    token = os.urandom(16).hex()
    descriptor = os.memfd_create(f"{_PREFIX}{token}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, WINDOW_BYTES)  # otherwise a write could end the process when memory is short
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
        window = Window(mmap.mmap(descriptor, WINDOW_BYTES), f"{os.getpid()}/{descriptor}/{token}")
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(window, os.close, descriptor).atexit = False
    return window


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@functools.cache
def _machine() -> str:
    """A digest of user, boot and namespaces (processes, network, users) of this process.

    A process in another network namespace counts as another machine, because traffic between the two is meant to pass
    that network.
    """
    if not (hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")):  # not everywhere, even on Linux
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user")]
    except OSError:
        return ""
    return hashlib.sha256("|".join([boot, str(os.getuid()), *spaces]).encode()).hexdigest()


os.register_at_fork(after_in_child=drop_spare)  # the windows belong to the parent
