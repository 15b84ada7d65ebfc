"""The commands that print what is kept nowhere else: an invitation's token, and an operator's password."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgsp.errors import RunError
from top_server.federation.folder import opened

INVITE = ("invite", "site", "--clients", "0-3")
OPERATOR = ("operator", "ann")
NO_ROOM, CLOSED = os.strerror(28), os.strerror(32)


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def call(folder: Path, *words: str, output: int = subprocess.PIPE) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command of top-server."""
    command = [sys.executable, "-m", "top_server", *words]
    streams = {"stdout": output, "stderr": subprocess.PIPE}
    found = subprocess.run(command, **streams, cwd=folder, text=True, timeout=50, check=False)  # type: ignore[call-overload]
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize(("what", "command"), [("the token", INVITE), ("the password", OPERATOR)])
def test_what_could_not_be_printed_is_told_and_the_same_command_makes_it_anew(
    what: str, command: tuple[str, ...], tmp_path: Path, closed_pipe: int
) -> None:
    assert call(tmp_path, "invite", "other", "--clients", "9")[0] == 0
    with open("/dev/full", "wb") as full:
        for output, why in ((full.fileno(), NO_ROOM), (closed_pipe, CLOSED)):
            code, _, said = call(tmp_path, *command, output=output)
            assert (code, said) == (
                RunError.exit_code,
                f"error: {what} could not be written ({why}); run the same command again\n",
            )
            assert opened(tmp_path / "federation").registry().operators == {}
            assert not list(tmp_path.glob("ann.*"))
    code, printed, _ = call(tmp_path, *command)
    assert code == 0
    assert printed.strip()


def test_an_output_that_the_shell_has_closed_takes_no_token(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "top_server", *INVITE)
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
    found = subprocess.run(shell, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=50, check=False)
    assert found.returncode == RunError.exit_code
    assert found.stderr.startswith("error: the token could not be written (Bad file descriptor)")
