"""What the page of a run shows, as a value of JSON: sums and curves, not single events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedgsp.scoring import ACCURACY, LOSS, metric_of, rated
from fedgsp.visible import visible
from top_server.pictures.shown import further_metrics
from top_server.record.scores import score_of, scored_by
from top_server.report.facts import CLIENT_HEADS, NODE_HEADS, Ending, Facts, nodes_there
from top_server.report.story import Story
from top_server.web.pictures import described
from top_server.web.state import State

#: Lines of what went wrong that the page has at first, and kinds of trouble.
_MOST_LINES, _MOST_TROUBLES = 100, 300
_PER_ROUND = ("seconds", "bytes_direct", "bytes_relayed", "bytes_travelled", "clients_trained", "clients_skipped")


def overview(facts: Facts, story: Story, state: State) -> dict[str, Any]:
    """What the page of a run shows first."""
    begun = next(
        (event for event in reversed(story.events) if event.get("event") in ("run_started", "run_resumed")), {}
    )
    rounds = begun.get("rounds") or facts.config.rounds
    return {
        "name": facts.name,
        "lives": state.lives,
        "full": state.full,
        "ending": asdict(_ending(facts, state)),
        "counted": story.counted,
        "end": story.offset,
        "scheme": facts.config.scheme,
        "task": visible(facts.config.task),
        "rounds": rounds,
        "round": max(story.begins, default=0),
        "begun": sorted(story.begins),
        "present": _present(facts, story, state),
        "names": {client: visible(name) for client, name in story.names.items()},
        "result": facts.result,
        "costs": facts.costs,
        "chosen": facts.chosen,
        "settings": facts.settings,
        "nodes": {"heads": NODE_HEADS, "rows": facts.nodes},
        "clients": {"heads": CLIENT_HEADS, "rows": facts.clients},
        "troubles": [asdict(one) | {"rounds": one.rounds} for one in facts.troubles[:_MOST_TROUBLES]],
        "lines": facts.lines[-_MOST_LINES:],
        "all_lines": facts.all_lines,
        "curves": curves(facts),
        "pictures": described(story),
        "reason": _reason(story),
    }


def _ending(facts: Facts, state: State) -> Ending:
    """How the run stands; a full disk is told here, for a run cannot record that."""
    if not state.full or facts.ending.kind in ("finished", "stopped"):
        return facts.ending
    what = "the run waits for room, for an hour at most" if state.lives else "nobody writes its record any more"
    return Ending(
        "failed",
        f"The disk of the run directory is full. {facts.ending.title}",
        f"the top server can write no event and no model; {what}",
        "make room on that disk; a run that waits goes on by itself, another one by top-server --resume",
    )


def _present(facts: Facts, story: Story, state: State) -> dict[str, int]:
    """How many nodes and clients are there."""
    there = nodes_there(story.events) if facts.ending.kind == "open" and state.lives is not False else {}
    return {"nodes": len(there), "clients": sum(there.values())}


def curves(facts: Facts) -> dict[str, Any]:
    """The columns of the history by round; accuracy in percent. None where a round has no value."""
    rows = facts.rows
    rating = facts.rated_by
    score = [rated(scored_by(row), score_of(row)) if metric_of(scored_by(row)) == rating else None for row in rows]
    evaluated = [row for row in rows if row.get(LOSS) is not None]
    rounds: list[Any] = [row.get("round") for row in rows]
    metrics = {
        visible(name): [_number(values.get(number)) for number in rounds]
        for name, values in further_metrics(evaluated).items()
    }
    return {
        "rated_by": visible(rating) + (", %" if rating == ACCURACY else ""),
        "round": rounds,
        "score": [None if one is None else _number(100 * one if rating == ACCURACY else one) for one in score],
        "loss": [_number(row.get(LOSS)) for row in rows],
        "metrics": metrics,
        **{name: [_number(row.get(name)) for row in rows] for name in _PER_ROUND},
    }


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and math.isfinite(value) else None


def _reason(story: Story) -> str:
    """Why the groups of the last round were formed."""
    last: Mapping[str, Any] = next(
        (event for event in reversed(story.events) if event.get("event") == "round_started"), {}
    )
    return visible(str(last.get("reason") or ""))
