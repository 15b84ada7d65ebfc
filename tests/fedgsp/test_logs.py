from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from fedgsp import logs
from fedgsp.errors import DataError, PeerError


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("fedgsp")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def test_a_line_has_time_level_and_origin_and_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("fedgsp.x").info("round=%d", 3)
    logging.getLogger("fedgsp.x").debug("not this")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("Z INFO fedgsp.x: round=3\n")
    assert captured.err.count("\n") == 1


def test_more_is_said_of_our_own_only(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(verbose=True)
    logs.configure(verbose=True)
    logging.getLogger("fedgsp.x").debug("ours")
    logging.getLogger("asyncio").debug("theirs")
    assert capsys.readouterr().err.endswith("DEBUG fedgsp.x: ours\n")


def test_json_lines_hold_a_traceback_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json_lines=True)
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("fedgsp.x").exception("it is %s", "lost")
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "fedgsp.x", "it is lost")
    assert "KeyError" in found["traceback"]


def test_what_is_printed_beside_json_lines_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json_lines=True)
    print("loading 3 files")  # noqa: T201
    logging.getLogger("fedgsp.x").info("loaded")
    captured = capsys.readouterr()
    assert captured.err == "loading 3 files\n"
    assert json.loads(captured.out)["message"] == "loaded"


def test_an_error_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert logs.report(DataError("the file\nis cut", "fetch it")) == 4
    assert capsys.readouterr().err == "error: the file is cut; fetch it\n"


def test_an_error_has_its_exit_code_also_when_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert logs.report(PeerError("no answer")) == PeerError.exit_code
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_lines_that_cannot_be_written_are_left_out_and_that_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when the program that reads the lines of --json has ended."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        logs.configure(json_lines=True)
        for number in range(3):
            logging.getLogger("fedgsp.x").info("round=%d", number)
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    told = capsys.readouterr().err
    assert told == "log lines cannot be written, and are left out: No space left on device\n"


def test_a_program_that_does_not_read_the_lines_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a terminal after Ctrl-S, which waits for Ctrl-Q."""
    reader, writer = os.pipe()
    found: list[str] = []

    def read() -> None:
        with open(reader, encoding="utf-8") as file:
            found.extend(file)

    with open(writer, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.configure()
        for number in range(4000):  # far more than a pipe holds
            logging.getLogger("fedgsp.x").info("line=%d %s", number, "x" * 50)
        reading = threading.Thread(target=read)
        reading.start()
        assert logs.report(PeerError("no answer")) == PeerError.exit_code
    reading.join()
    assert [line.split("line=")[1].split()[0] for line in found[:-1]] == list(map(str, range(4000)))
    assert found[-1] == "error: no answer\n"


def test_nobody_is_told_that_the_reader_of_the_lines_has_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        logs.configure(json_lines=True)
        for number in range(3):
            logging.getLogger("fedgsp.x").info("round=%d", number)
        logs.flush()
    assert capsys.readouterr().err == ""


def test_a_forked_process_writes_its_lines_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that writes is in the parent alone."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.configure()
        if not (child := os.fork()):
            logging.getLogger("fedgsp.x").info("from the child")
            os._exit(0)
        os.waitpid(child, 0)
    with open(reader, encoding="utf-8") as file:
        assert file.read().endswith("INFO fedgsp.x: from the child\n")
