from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from fedgsp import printing
from fedgsp.printing import Printer


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The end to read from and the end to write to."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_what_is_put_is_written_in_order(pipe: tuple[int, int]) -> None:
    printer = Printer(pipe[1])
    for number in range(100):
        printer.put(f"{number}\n")
    printer.close()
    assert os.read(pipe[0], 1 << 16) == b"".join(b"%d\n" % number for number in range(100))


def test_whoever_does_not_read_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Far more than a pipe holds is put; what finds no room is left out, whole lines, and told once."""
    monkeypatch.setattr(printing, "MOST_WAITING_BYTES", 1 << 20)
    reader, writer = os.pipe()
    lines = [f"{number:>1023}\n" for number in range(3000)]
    printer = Printer(writer)
    for line in lines:
        printer.put(line)
    printer.close(0)  # it does not wait for the reader either
    assert [record.getMessage() for record in caplog.records] == [
        "stdout is not read fast enough: lines are left out there; events.jsonl has all"
    ]
    found: list[str] = []

    def read() -> None:
        with open(reader) as file:
            found.extend(file)

    reading = threading.Thread(target=read)
    reading.start()
    printer.close(None)
    os.close(writer)
    reading.join()
    assert 1024 <= len(found) < len(lines)
    assert found[:1024] == lines[:1024]
    assert set(found) <= set(lines)


def test_lines_that_nobody_has_read_at_the_end_are_told(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    printer = Printer(writer)
    printer.put("x" * (1 << 20))  # more than a pipe holds
    printer.close(0)
    os.close(reader)  # the writer gives up
    printer.close(None)
    os.close(writer)
    assert [record.getMessage() for record in caplog.records] == [
        "stdout is not read: its last lines are left out there; events.jsonl has all"
    ]


def test_a_reader_that_left_is_nobodys_concern(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        printer = Printer(writer)
        printer.put("a\n")
        printer.close(None)
        printer.put("b\n")
    finally:
        os.close(writer)
    assert not caplog.records


def test_a_full_disk_is_told_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        printer = Printer(full)
        for _ in range(3):
            printer.put("a\n")
        printer.close(None)
    finally:
        os.close(full)
    assert [record.getMessage() for record in caplog.records] == [
        "stdout cannot be written to any more: No space left on device; events.jsonl has all"
    ]


def test_a_letter_that_the_encoding_lacks_is_escaped(pipe: tuple[int, int]) -> None:
    printer = Printer(pipe[1], "ascii")
    printer.put("Süd\n")
    printer.close()
    assert os.read(pipe[0], 100) == b"S\\xfcd\n"
