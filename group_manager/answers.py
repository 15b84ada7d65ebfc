"""Whether what a node reports can be the answer to its order."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import NoneType
from typing import Any

from fedgsp.messages import (
    MOST_SAMPLES,
    Describe,
    Described,
    Discriminate,
    Discriminated,
    Evaluate,
    Evaluated,
    Initialise,
    Recall,
    Recalled,
    Result,
    Train,
    Trained,
    Work,
)
from fedgsp.updates import update_of

#: Bytes that an order may have moved: their sums fit a message.
MOST_BYTES = 1 << 56


def flaw(work: Work | None, result: Result | Recalled | None) -> str:
    """What is wrong with a result; empty if nothing is."""
    wanted = _ANSWERS.get(type(work), NoneType)
    if type(result) is not wanted:
        return f"it answered {_name(type(result))} in place of {_name(wanted)}"
    return _FLAWS[wanted](work, result) if result is not None else ""


def _name(kind: type) -> str:
    return "nothing" if kind is NoneType else kind.__name__


def _trained(work: Work | None, result: Trained) -> str:
    ref, update = result.ref, result.update
    produces = work.produces if isinstance(work, Train | Initialise) else ""
    if ref is not None and ref.id != produces:
        return f"it made model {ref.id!r} in place of {produces!r}"
    revealed = update_of(produces) if isinstance(work, Train) and work.reveal is not None else None
    if update is not None and update.id != revealed:
        return f"it revealed {update.id!r}, which was not asked for"
    return _counts(samples=result.samples) or _moved(result.bytes)


def _evaluated(_: Work | None, result: Evaluated) -> str:
    if result.correct > result.samples:
        return f"{result.correct} right answers on {result.samples} samples"
    if math.isnan(result.squared_distance) or result.squared_distance < 0:
        return f"a squared distance of {result.squared_distance}"
    return _counts(samples=result.samples) or _moved(result.bytes)


def _described(_: Work | None, result: Any) -> str:
    return _counts(**{f"samples of class {label}": count for label, count in enumerate(result.class_counts)})


def _discriminated(work: Work | None, result: Discriminated) -> str:
    produces = work.produces if isinstance(work, Discriminate) else ""
    if result.ref is not None and result.ref.id != produces:
        return f"it made model {result.ref.id!r} in place of {produces!r}"
    return _counts(samples=result.samples) or _moved(result.bytes)


def _recalled(work: Work | None, result: Recalled) -> str:
    asked = work.model_ids if isinstance(work, Recall) else ()
    unknown = next((model_id for model_id in result.model_ids if model_id not in asked), None)
    return f"it holds {unknown!r}, which was not asked for" if unknown is not None else ""


#: Work -> the kind of its results; other work has none.
_ANSWERS: dict[type, type] = {
    Train: Trained,
    Initialise: Trained,
    Evaluate: Evaluated,
    Describe: Described,
    Discriminate: Discriminated,
    Recall: Recalled,
}
_FLAWS: dict[type, Callable[[Work | None, Any], str]] = {
    Trained: _trained,
    Evaluated: _evaluated,
    Described: _described,
    Discriminated: _discriminated,
    Recalled: _recalled,
}


def _counts(**counts: int) -> str:
    name = next((name for name, count in counts.items() if count > MOST_SAMPLES), None)
    return f"it says that it has {counts[name]} {name}" if name is not None else ""


def _moved(count: int) -> str:
    return f"it says that it moved {count} bytes" if count > MOST_BYTES else ""
