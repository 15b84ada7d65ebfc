from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
import typer

from fedgsp import commands
from fedgsp.errors import ConfigError, RunError
from fedgsp.stdout import CLOSED_PIPE

#: A command that prints by WAY. Its child process leaves as every command of FedGSP does.
PRINTS = """
import sys, typer
from fedgsp import commands
from fedgsp.processes import lifecycle
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def show() -> None:
    "Show it."
    WAY
lifecycle.leave(commands.run(app, "show"))
"""
#: Flags of Python, how the command prints, and its arguments.
COMMANDS = pytest.mark.parametrize(
    ("flags", "way", "arguments"),
    [
        ((), "typer.echo('text')", ()),
        ((), "print('text')", ()),
        ((), "print('text')", ("--help",)),
        (("-u",), "typer.echo('text')", ()),
        (("-u",), "print('text')", ()),
    ],
)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["start", "--name", "S\udcfcd"], r"--name S\udcfcd"),
        (["start", "--name=S\udcfcd"], r"--name=S\udcfcd"),
        (["--task-option", "a=b", "--task-option", "data=cw\udcff/data"], r"--task-option data=cw\udcff/data"),
        (["--name=a", "--name=S\udcfcd"], r"--name=S\udcfcd"),
        (["picture", "r\udcff"], r"r\udcff"),
        (["--n\udcff", "x"], r"--n\udcff"),
    ],
)
def test_what_is_not_text_is_refused_in_the_name_of_its_flag_before_anything_reads_it(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["top-server", *arguments])
    assert commands.run(typer.Typer(), "top-server") == ConfigError.exit_code
    assert capsys.readouterr().err == f"error: {told} is not UTF-8; write it in UTF-8\n"


def test_letters_of_any_language_are_text() -> None:
    commands.check_text(["--name", "Klinik Süd", "--task-option", "data=/данные", "數據"])


def ended(way: str, output: int, *arguments: str, flags: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and standard error of a command that prints by `way` to this descriptor."""
    command = [sys.executable, *flags, "-c", PRINTS.replace("WAY", way), *arguments]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    streams = {"stdout": output, "stderr": subprocess.PIPE}
    found = subprocess.run(command, **streams, env=buffered, text=True, timeout=50, check=False)  # type: ignore[call-overload]
    return found.returncode, found.stderr


@COMMANDS
def test_an_output_that_cannot_be_written_is_one_line(
    flags: Sequence[str], way: str, arguments: Sequence[str]
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        told = "error: standard output cannot be written: No space left on device; make room on that disk\n"
        assert ended(way, full, *arguments, flags=flags) == (RunError.exit_code, told)
    finally:
        os.close(full)


@COMMANDS
def test_a_reader_that_has_left_is_no_error_to_talk_about(
    flags: Sequence[str], way: str, arguments: Sequence[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended(way, writer, *arguments, flags=flags) == (CLOSED_PIPE, "")
    finally:
        os.close(writer)


def test_an_error_of_another_file_keeps_its_traceback() -> None:
    code, told = ended("open('/nowhere/file')", subprocess.DEVNULL)
    assert code == 1
    assert "FileNotFoundError" in told


def test_too_many_open_files_are_a_limit_to_raise() -> None:
    code, told = ended("import errno, os; raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))", subprocess.DEVNULL)
    assert code == RunError.exit_code
    assert told == (
        "error: this process cannot go on: Too many open files; raise the number of files that a process may open:"
        " ulimit -n\n"
    )


def test_a_locale_without_utf8_is_told_from_text_without_it() -> None:
    argument = "daten-\udcc3\udcbc"  # as Python reads `ü` in such a locale
    with pytest.raises(ConfigError, match=r"is UTF-8, which Python does not read here .*; set PYTHONUTF8=1"):
        commands.check_text(["--out", argument])
