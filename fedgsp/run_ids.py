"""Ids of runs. A local run, in which every client of a run trains alone, has the id of that run and a mark."""

import re

#: The mark of a local run: "1234abcd.alone" belongs to "1234abcd".
ALONE = ".alone"

_RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}", re.ASCII)


def is_run(text: str) -> bool:
    """Whether a text can be the id of a run. Files have names with it."""
    return _RUN.fullmatch(text) is not None


def is_local(run: str) -> bool:
    """Whether the id is that of a local run."""
    return run.endswith(ALONE)


def whole(run: str) -> str:
    """The id of the run that a run belongs to: its own, unless it is a local run."""
    return run.removesuffix(ALONE)
