"""Several runs over one another: the curves of each, and a row for runs that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedgsp.visible import visible
from top_server.report.comparison import rows_of, variants
from top_server.report.facts import Facts, restorable, told
from top_server.report.story import Story
from top_server.web.overview import curves

#: Runs that are compared at most: more lines could not be told apart.
MOST_COMPARED = 12
HEADS = ("what differs", "seeds", "rounds", "score after the last evaluation", "loss", "time of a run")


def compared(runs: Sequence[tuple[str, Story]]) -> dict[str, Any]:
    """The comparison of runs, by their names; raises UserError if one cannot be read, or is damaged."""
    facts = [told(story, count=False) for _, story in runs]
    with restorable(*(story for _, story in runs)):
        return _compared(runs, facts)


def _compared(runs: Sequence[tuple[str, Story]], facts: Sequence[Facts]) -> dict[str, Any]:
    return {
        "heads": HEADS,
        "rows": rows_of(variants(facts)) if facts else [],
        "runs": [
            {
                "run": name,
                "name": visible(name),
                "kind": one.ending.kind,
                "title": one.ending.title,
                "curves": curves(one),
            }
            for (name, _), one in zip(runs, facts, strict=True)
        ],
    }
