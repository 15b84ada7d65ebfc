"""A program as a child of a template, in a folder and an environment: this module becomes the program."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from setproctitle import setproctitle


def program(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """A child that is as `python -m COMMAND` in this folder, with this environment."""
    return [__name__, json.dumps([list(command), str(folder), dict(environment)])]


if __name__ == "__main__":
    sys.argv, start, told = json.loads(sys.argv[1])
    os.environ.clear()
    os.environ.update(told)
    os.chdir(start)
    sys.path.insert(0, start)
    # Those of the template were made for other files, and remember whether one can seek in them.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    setproctitle(" ".join(sys.argv))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
