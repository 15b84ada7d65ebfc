"""Which values columns of the history and fields of events have, where pictures, reports and pages read them."""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from fedgsp.messages import MOST_CLIENT
from fedgsp.scoring import is_figure
from fedgsp.visible import visible

#: Column -> whether a value of it is right.
Columns = Mapping[str, Callable[[Any], bool]]

#: A history with later rounds is damaged.
_LAST_ROUND = 1_000_000
#: Characters of a wrong value that an error quotes.
_MOST_QUOTED = 60


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and is_figure(value))


def _is_round(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LAST_ROUND


def is_client(text: str) -> bool:
    """Whether a key of an object is the number of a client. `int` refuses texts of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(MOST_CLIENT))


def _are_figures(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(is_client(one) and _is_number(value[one]) for one in value)
    )


def _is_group(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} == {int} and min(value) >= 0 and max(value) <= MOST_CLIENT


def _are_groups(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_group, value)))


#: Of the history.
HISTORY: Columns = {
    "round": _is_round,
    **dict.fromkeys(("accuracy", "loss", "score", "ipr", "rsd"), _is_number),
    **dict.fromkeys(("accuracy_per_client", "score_per_client"), _are_figures),
    "scored_by": lambda value: value is None or isinstance(value, str),
    "metrics": lambda value: value is None or (isinstance(value, dict) and all(map(_is_number, value.values()))),
    "partition": _are_groups,
}
#: Of all events.
EVENTS: Columns = {"round": lambda value: value is None or _is_round(value), "teams": _are_groups}


def wrong_in(line: Mapping[str, Any], columns: Columns) -> str:
    """The first column with a wrong value, and that value, in words; empty if there is none."""
    wrong = next((name for name, is_right in columns.items() if not is_right(line.get(name))), None)
    # `reprlib` goes only some levels deep: a text of all levels would need more calls than Python allows.
    return "" if wrong is None else f"{wrong} is {visible(reprlib.repr(line.get(wrong)))[:_MOST_QUOTED]}"
