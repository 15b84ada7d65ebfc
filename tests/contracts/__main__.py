"""The command `python -m tests.contracts KIND=NAME ...`."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgsp.errors import UserError
from tests.contracts.kinds import CHECKS

_CHECKS = Path(__file__).parent
#: What `pytest.raises` raises if nothing was raised.
Missed = pytest.fail.Exception


def faults(told: str) -> Iterator[str]:
    """What is wrong with a part, given as KIND=NAME: nothing if it keeps its contract."""
    kind, _, name = told.partition("=")
    if kind not in CHECKS or not name:
        yield f"{told}: write KIND=NAME, with a KIND of {', '.join(CHECKS)}"
        return
    try:
        asyncio.run(CHECKS[kind](name))
    except* (Exception, Missed) as group:
        yield from (f"{kind} {name}: {_said(error)}" for error in _single(group))


def _single(group: BaseExceptionGroup) -> Iterator[BaseException]:
    for error in group.exceptions:
        yield from _single(error) if isinstance(error, BaseExceptionGroup) else [error]


def _said(error: BaseException) -> str:
    """An error in one line; one that no check has put into words comes with the line that raised it."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError) or (isinstance(error, AssertionError) and text):
        return text
    places = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, AssertionError | Missed):  # the line of the check says what the part does not keep
        places = [one for one in places if _CHECKS in Path(one.filename).parents] or places
        text = f"{text} {places[-1].line}"
    return f"{type(error).__name__}: {' '.join(text.split())} ({Path(places[-1].filename).name}:{places[-1].lineno})"


def main(*parts: str) -> int:
    """Checks parts by kind and name: a line for each fault, or one that says that there is none."""
    wrong = 0
    for part in parts:
        found = list(faults(part))
        wrong += len(found)
        for line in found or [f"{part.replace('=', ' ', 1)} keeps its contract"]:
            sys.stdout.write(f"{line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
