"""Who trained with whom after the last round, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.results.coalitions import by_c, chosen
from benchmarks.results.summary import Summary
from fedgsp.errors import ConfigError


def last_groups(summary: Summary) -> str:
    """The groups after the last round, such as `0-4 5-9`; empty if the run recorded none."""
    return next(reversed(summary["partitions"].values()), "")


def sizes(groups: str) -> str:
    """The number of groups, and how many clients each has, ascending: `2: 5 5`."""
    found = sorted(_size(group) for group in groups.split())
    return f"{len(found)}: " + " ".join(map(str, found))


def _size(group: str) -> int:
    parts = [part.partition("-") for part in group.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts)


def _braces(groups: str) -> str:
    return " ".join(f"{{{group}}}" for group in groups.split())


def _next_best(summary: Summary) -> str:
    found = chosen(summary)
    return "" if found is None else found.instead


#: Name -> how the groups of a run are written, by the options of the text. Alike texts of several seeds are counted.
_TEXTS: Mapping[str, Callable[..., str]] = {
    "groups": lambda summary: _braces(last_groups(summary)),
    "group-sizes": lambda summary: sizes(groups) if (groups := last_groups(summary)) else "",
    "next-best": _next_best,
    "coalitions": by_c,
}


#: Name -> the options that a text needs.
_OPTIONS: Mapping[str, set[str]] = {"coalitions": {"c"}}


def structures(runs: Mapping[int, Summary], text: str, where: str, **options: Any) -> str:
    """The groups of all seeds; if seeds differ, the most frequent first, with their numbers of seeds."""
    if text not in _TEXTS:
        raise ConfigError(f"{where}: there is no text {text!r}", f"use one of: {', '.join(_TEXTS)}")
    if options.keys() != _OPTIONS.get(text, set()):
        needed = ", ".join(sorted(_OPTIONS.get(text, set()))) or "none"
        raise ConfigError(f"{where}: text {text} has options {sorted(options)}", f"its options: {needed}")
    counted = Counter(found for run in runs.values() if (found := _TEXTS[text](run, **options)))
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{found} ({number} of {len(runs)})" for found, number in counted.most_common()) or "-"
