"""Shows how a run goes on: in a notebook in one place, elsewhere a line for each event that people should read."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping
from typing import Any

from top_server.view.state import ViewState

#: Lines that a notebook shows.
_LINES = 6


class Progress:
    """Takes the events of a run, and shows them unless it is `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._state = ViewState()
        self._lines: list[str] = []
        self._display = None if quiet else _display()

    def apply(self, event: Mapping[str, Any]) -> None:
        """Shows an event, if it is for people."""
        line = self._state.apply(event)
        if line is None or self._quiet:
            return
        if self._display is None:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            return
        self._lines = [*self._lines, line][-_LINES:]
        done = f"round {self._state.finished_rounds} of {self._state.rounds}" if self._state.rounds else "starting"
        text = html.escape("\n".join(self._lines))
        self._display.update(_Shown(f"<b>{done}</b><pre>{text}</pre>", f"{done}\n" + "\n".join(self._lines)))


class _Shown:
    """A text that a notebook shows as HTML, and a terminal as it is."""

    def __init__(self, page: str, text: str) -> None:
        self._page, self._text = page, text

    def _repr_html_(self) -> str:
        return self._page

    def __repr__(self) -> str:
        return self._text


def _display() -> Any:
    """A place of a notebook that can be updated; None outside of notebooks."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    return display(_Shown("starting", "starting"), display_id=True)
