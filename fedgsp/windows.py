"""Memory that two processes of one machine see: what passes through it is not copied in and out of a socket."""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import re
import weakref
from collections import deque
from pathlib import Path

from xxhash import xxh3_128

#: How a process may be told to hand models over.
HAND_OVERS = ("auto", "network")
#: A sender fills one slot while the receiver empties another.
SLOTS, SLOT_BYTES = 2, 4 << 20
WINDOW_BYTES = SLOTS * SLOT_BYTES
#: Smaller models are through a socket before a window is open.
LEAST_BYTES = 1 << 20
#: Windows of a process, at the most: whoever asks for models must not use up its memory and descriptors.
MOST = 8
#: Those that are kept for the next models: getting their pages costs more than a copy.
_SPARE = 2
_NAME = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/([0-9a-f]{32})", re.ASCII)

_made: weakref.WeakSet[Window] = weakref.WeakSet()
_spare: deque[Window] = deque(maxlen=_SPARE)
_allowed = True


class Window:
    """Slots of memory that other processes of this user on this machine can open by `name`."""

    def __init__(self, pages: mmap.mmap, name: str) -> None:
        self.name = name
        self._bytes = memoryview(pages)

    def slot(self, number: int) -> memoryview:
        """Where the bytes of the message of this number are, counted from 0."""
        start = number % SLOTS * SLOT_BYTES
        return self._bytes[start : start + SLOT_BYTES]


def choose(hand_over: str) -> None:
    """Whether this process hands models over, and takes them, through windows (`auto`) or never (`network`)."""
    global _allowed
    _allowed = hand_over == HAND_OVERS[0]


def machine() -> str:
    """Processes that have this in common can open each other's windows; empty where there are none."""
    return _machine() if _allowed else ""


def is_here(peer: str) -> bool:
    """Whether a peer of this machine, as it says, can be offered a window."""
    return bool(peer) and peer == machine()


def lend() -> Window | None:
    """A window to send a model through; None if there are too many, or the system gives none."""
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
    """Keeps a window for the next model: only one that nobody reads any more. Any other is simply dropped."""
    _spare.append(window)


def drop_spare() -> None:
    """Gives back the memory that is kept for a next model."""
    _spare.clear()


def opened(name: str) -> Window:
    """Another process's window, to be read; raises OSError if there is none of that name, or it cannot be had."""
    parts = _NAME.fullmatch(name)
    if parts is None or not machine():
        raise OSError(f"{name[:60]!r} names no window of this machine")
    process, number, token = parts.groups()
    path = f"/proc/{process}/fd/{number}"
    if os.readlink(path) != f"/memfd:{_file(token)} (deleted)":
        raise OSError(f"{path} is not window {token}")
    # It may be something else by now, and to open a pipe may wait forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # Whoever could shrink it later could end this process by that.
        if os.fstat(descriptor).st_size != WINDOW_BYTES or ~fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _seals():
            raise OSError(f"{path} is no window of {WINDOW_BYTES} bytes")
        return Window(mmap.mmap(descriptor, WINDOW_BYTES, prot=mmap.PROT_READ), name)
    finally:
        os.close(descriptor)


def _make() -> Window:
    token = os.urandom(16).hex()
    descriptor = os.memfd_create(_file(token), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, WINDOW_BYTES)  # else to write might end the process where memory is short
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
        window = Window(mmap.mmap(descriptor, WINDOW_BYTES), f"{os.getpid()}/{descriptor}/{token}")
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(window, os.close, descriptor).atexit = False
    return window


def _file(token: str) -> str:
    return f"fedgsp-{token}"


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@functools.cache
def _machine() -> str:
    """The same for the processes of one user, one boot, one space of processes and one network.

    A network of one's own counts as another machine: whoever puts something between the two wants it seen.
    """
    if not (hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")):  # not everywhere, even on Linux
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user")]
    except OSError:
        return ""
    return xxh3_128("|".join([boot, str(os.getuid()), *spaces]).encode()).hexdigest()


os.register_at_fork(after_in_child=drop_spare)  # they are the parent's
