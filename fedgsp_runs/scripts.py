"""The texts of the script, or of the cells of the notebook, that this process executes."""

from __future__ import annotations

import linecache
import sys

#: Where notebooks and scripts define their names.
MAIN = "__main__"


def text_of(file: str) -> str:
    """What a file, or a cell, contains now; empty if nobody knows."""
    linecache.checkcache(file)
    return "".join(linecache.getlines(file, vars(sys.modules[MAIN])))


def cells() -> list[str]:
    """The names of the notebook's cells as files, the last executed first.

    ipykernel names a cell by its text, so a text that is executed again keeps its old place there. The list `In` has
    all texts in the order in which they were executed.
    """
    inputs = getattr(sys.modules[MAIN], "In", None)
    executed = inputs if isinstance(inputs, list) else []
    last = {text.strip(): place for place, text in enumerate(executed) if isinstance(text, str)}
    found = [file for file in list(linecache.cache) if "ipykernel" in file or file.startswith("<ipython-input")]
    return sorted(found, key=lambda file: last.get(text_of(file).strip(), -1))[::-1]


def texts() -> list[str]:
    """The texts of all cells, the last executed first, and that of the script."""
    file = getattr(sys.modules[MAIN], "__file__", None)
    return [text_of(one) for one in [*cells(), *([file] if isinstance(file, str) else [])]]
