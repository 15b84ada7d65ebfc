"""The standard output is for results: what others print goes to stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The shell closes a descriptor before the program starts.
CLOSED = 'exec "$0" -c "$1" 2>&-'


@pytest.mark.parametrize("number", [1, 2])
def test_without_stderr_what_others_print_is_dropped(number: int) -> None:
    code = "import contextlib, os\nfrom fedgsp import apart\nresults = apart.taken()\n"
    code += f"with contextlib.suppress(OSError): os.write({number}, b'dropped')\nprint('result', file=results)"
    ended = subprocess.run(["sh", "-c", CLOSED, sys.executable, code], stdout=subprocess.PIPE, text=True, check=False)
    assert ended.stdout == "result\n"
