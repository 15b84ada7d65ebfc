"""The standard output is for results: what others print goes to stderr, and no result is lost silently."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The shell closes a descriptor before the program starts.
CLOSED = 'exec "$0" -c "$1" 2>&-'
#: A file may have 500 bytes, as if the disk were full; later it has room again.
FULL = """
import logging, resource, signal
from fedgsp import logs

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (500, most))
logs.configure(json_lines=True)
for number in range(6):
    logging.getLogger("fedgsp").info("line %d", number)
{later}
for number in range(6, 9):
    logging.getLogger("fedgsp").info("line %d", number)
"""
ROOM_AGAIN = "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, most))"
LOST = "log lines cannot be written, and are left out: File too large\n"
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}


@pytest.mark.parametrize(("later", "numbers"), [(ROOM_AGAIN, [0, 1, 2, 3, 4, 6, 7, 8]), ("", [0, 1, 2, 3, 4])])
def test_a_line_for_which_a_disk_has_no_room_is_told_and_cuts_no_other(
    later: str, numbers: list[int], tmp_path: Path
) -> None:
    with open(tmp_path / "out", "wb") as out:
        command = [sys.executable, "-c", FULL.format(later=later)]
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED)
    assert (ended.returncode, ended.stderr) == (0, LOST)
    *lines, last = (tmp_path / "out").read_text().splitlines()
    found = [json.loads(line)["message"] for line in [*lines, last] if line.endswith("}")]
    assert found == [f"line {number}" for number in numbers]


@pytest.mark.parametrize("number", [1, 2])
def test_without_stderr_what_others_print_is_dropped(number: int) -> None:
    code = "import contextlib, os\nfrom fedgsp.processes import apart\nresults = apart.taken()\n"
    code += f"with contextlib.suppress(OSError): os.write({number}, b'dropped')\nprint('result', file=results)"
    ended = subprocess.run(["sh", "-c", CLOSED, sys.executable, code], stdout=subprocess.PIPE, text=True, check=False)
    assert ended.stdout == "result\n"
