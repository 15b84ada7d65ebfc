from __future__ import annotations

import json
import logging
import os
import sys
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
