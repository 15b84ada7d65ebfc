"""Windows: who can open which, and how many there are."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from typing import Any

import pytest

from fedgsp import windows
from fedgsp.windows import WINDOW_BYTES
from tests.support.handed_over import a_window

pytestmark = [
    pytest.mark.skipif(not windows.machine(), reason="no windows on this system"),
    pytest.mark.usefixtures("no_window_spare"),
]


def test_a_window_is_lent_to_one_at_a_time_and_there_are_not_many() -> None:
    windows.give_back(a_window())
    held = [a_window() for _ in range(windows.MOST)]
    assert len({window.name for window in held}) == windows.MOST
    assert windows.lend() is None
    last = held.pop()
    windows.give_back(last)
    assert windows.lend() is last


async def test_nothing_is_opened_where_only_the_network_is_allowed() -> None:
    window = a_window()
    windows.choose("network")
    try:
        with pytest.raises(OSError, match="of this machine"):
            windows.opened(window.name)
    finally:
        windows.choose("auto")


def test_a_pipe_of_that_name_does_not_stop_the_process(tmp_path: Any) -> None:
    token = "0" * 32
    path = tmp_path / "pipe"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "readlink", lambda _: f"/memfd:fedgsp-{token} (deleted)")
            with pytest.raises(OSError, match="is no window"):
                windows.opened(f"{os.getpid()}/{descriptor}/{token}")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "name", ["", "1", "1/2", "../../etc/passwd", "1/2/" + "0" * 31, "0/1/" + "0" * 32, "x" * 10_000]
)
def test_a_name_that_is_none_opens_nothing(name: str) -> None:
    with pytest.raises(OSError, match="names no window of this machine"):
        windows.opened(name)


def test_only_a_window_of_that_token_is_opened(tmp_path: Any) -> None:
    token = "0" * 32
    other = tmp_path / f"memfd:fedgsp-{token}"
    other.write_bytes(bytes(WINDOW_BYTES))
    reading, writing = os.pipe()
    window = a_window()
    with other.open("rb") as file:
        process, number, _ = window.name.split("/")
        for descriptor in (int(number), file.fileno(), reading):
            with pytest.raises(OSError, match="is not window"):
                windows.opened(f"{process}/{descriptor}/{token}")
    os.close(reading)
    os.close(writing)
    with pytest.raises(FileNotFoundError):
        windows.opened(f"{process}/{1 << 20}/{token}")


@pytest.mark.parametrize(("size", "sealed"), [(WINDOW_BYTES, False), (WINDOW_BYTES - mmap.PAGESIZE, True)])
def test_memory_that_its_owner_could_take_away_is_not_opened(size: int, sealed: bool) -> None:
    """Reading where a file has no more pages ends a process by a signal."""
    token = "a" * 32
    descriptor = os.memfd_create(f"fedgsp-{token}", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        if sealed:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with pytest.raises(OSError, match="is no window"):
            windows.opened(f"{os.getpid()}/{descriptor}/{token}")
    finally:
        os.close(descriptor)


def test_a_window_can_only_be_read_by_who_opened_it() -> None:
    window = a_window()
    seen = windows.opened(window.name)
    window.slot(1)[:3] = b"abc"
    assert bytes(seen.slot(3)[:3]) == b"abc"  # slots take turns
    with pytest.raises(TypeError, match="read-only"):
        seen.slot(0)[:1] = b"x"


def test_a_window_cannot_be_shrunk() -> None:
    window = a_window()
    with pytest.raises(PermissionError):
        os.truncate(int(window.name.split("/")[1]), 0)


def test_another_network_is_another_machine() -> None:
    ours = windows.machine()
    code = "from fedgsp import windows; print(windows.machine())"
    same = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert same.stdout.strip() == ours
    other = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if other.returncode:
        pytest.skip(f"no networks of one's own here: {other.stderr.strip()}")
    assert other.stdout.strip() not in ("", ours)


def test_a_child_that_is_forked_has_no_window_of_its_parent() -> None:
    windows.give_back(a_window())
    child = os.fork()
    if not child:
        os._exit(len(windows._spare))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(windows._spare) == 1
