"""A run whose disk is full waits for room, tells so once, and loses no byte."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import RunError, not_written
from fedgsp.processes import lifecycle
from top_server.record import journal, room

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def a_disk_with_room() -> Iterator[None]:
    lifecycle._ending.clear()  # a test before may have ended a process
    yield
    room._Disk.full_since = None


def pauses(monkeypatch: pytest.MonkeyPatch, *answers: bool) -> list[float]:
    """What `lifecycle.sleep` was asked for; it answers in this order."""
    asked: list[float] = []

    def sleep(seconds: float) -> bool:
        asked.append(seconds)
        return answers[len(asked) - 1]

    monkeypatch.setattr(lifecycle, "sleep", sleep)
    return asked


def writer(*errors: OSError | None) -> Callable[[], str]:
    left = list(errors)

    @room.waiting_for_room
    def write() -> str:
        if error := left.pop(0):
            raise not_written("events.jsonl", error) from error
        return "written"

    return write


def test_a_write_is_tried_again_until_there_is_room_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = pauses(monkeypatch, True, True)
    assert writer(FULL, FULL, None)() == "written"
    assert asked == [room.AGAIN_S] * 2
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("events.jsonl cannot be written: No space left on device; make room on that disk.")
    assert said[1].startswith("there is room again")
    assert len(said) == 2


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EROFS])
def test_other_reasons_are_not_waited_for(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    pauses(monkeypatch)
    with pytest.raises(RunError):
        writer(OSError(number, os.strerror(number)))()


def test_a_process_that_is_asked_to_end_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses(monkeypatch, True, False)
    with pytest.raises(RunError, match="make room"):
        writer(FULL, FULL)()


def test_while_a_large_write_waits_a_small_one_does_not_say_that_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small = writer(None, None)

    def sleep(_: float) -> bool:
        return small() == "written"

    monkeypatch.setattr(lifecycle, "sleep", sleep)
    assert writer(FULL, FULL, None)() == "written"
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["events.jsonl", "there"]


def test_a_process_that_ends_does_not_say_that_it_waits_or_that_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sleep(_: float) -> bool:
        lifecycle._ending.set()
        return False

    monkeypatch.setattr(lifecycle, "sleep", sleep)
    try:
        write = writer(FULL, None, FULL)
        with pytest.raises(RunError):
            write()
        assert write() == "written"
        with pytest.raises(RunError):
            write()
    finally:
        lifecycle._ending.clear()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "waits for room" in said


def test_after_an_hour_the_run_ends_and_its_last_event_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> bool:
        now[0] += 600
        return True

    monkeypatch.setattr(lifecycle, "sleep", sleep)
    write = writer(*[FULL] * 8)
    for _ in range(2):
        with pytest.raises(RunError, match="make room"):
            write()
    assert now == [3700.0]


class HalfFull(io.FileIO):
    """A file on a disk that takes ten bytes, and later all others."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "ab")
        self.left = 10

    def write(self, data: Any) -> int:
        if not self.left:
            self.left = 1 << 20
            raise FULL
        taken = super().write(data[: self.left])
        self.left -= taken
        return taken


def test_a_line_that_was_written_in_part_is_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pauses(monkeypatch, True)
    with HalfFull(tmp_path / "events.jsonl") as file:
        journal._append(file, '{"event": "listening", "address": "127.0.0.1:1"}\n')
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == {"event": "listening", "address": "127.0.0.1:1"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_of_the_event_loop(number: signal.Signals) -> None:
    answers: list[bool] = []

    async def main() -> None:
        killer = threading.Timer(0.1, os.kill, (os.getpid(), number))
        killer.start()
        answers.append(lifecycle.sleep(60))
        killer.join()

    handlers = signal.getsignal(number)
    assert lifecycle.run(main()) in (0, lifecycle.SIGNAL_EXIT_CODES[number])
    assert answers == [False]
    assert signal.getsignal(number) is handlers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts disks")
def test_what_was_written_to_a_real_full_disk_is_whole_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        filler = disk / "filler"
        filler.write_bytes(bytes(56 << 10))
        text = "x" * (20 << 10)

        def sleep(_: float) -> bool:
            filler.unlink()
            return True

        monkeypatch.setattr(lifecycle, "sleep", sleep)
        room.write_text(disk / "summary.json", text)
        assert (disk / "summary.json").read_text() == text
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
