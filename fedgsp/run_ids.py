"""Ids of runs. A local run, in which every client of a run trains alone, has the id of that run and a mark."""

import re

#: The mark of a local run: "1234abcd.alone" belongs to "1234abcd".
ALONE = ".alone"

_RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}", re.ASCII)


def is_run(text: str) -> bool:
    """Whether a text can be the id of a run, which is part of the names of files."""
    return _RUN.fullmatch(text) is not None


def is_local(run: str) -> bool:
    """Whether the id is that of a local run."""
    return run.endswith(ALONE)


def main_run(run: str) -> str:
    """The id of the main run of a local run; of any other run its own id."""
    return run.removesuffix(ALONE)
