"""Whether a node's report can be the answer to its order."""

from __future__ import annotations

import math
from types import NoneType

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

#: Bytes that an order can have moved; sums of such numbers fit a message.
MOST_BYTES = 1 << 56
#: Kind of work -> kind of its result; other kinds of work have none.
_ANSWERS: dict[type, type] = {
    Train: Trained,
    Initialise: Trained,
    Evaluate: Evaluated,
    Describe: Described,
    Discriminate: Discriminated,
    Recall: Recalled,
}


def flaw(work: Work | None, result: Result | Recalled | None) -> str:
    """What is wrong with a result; empty if nothing is."""
    wanted = _ANSWERS.get(type(work), NoneType)
    if type(result) is not wanted:
        return f"it answered {_name(type(result))} in place of {_name(wanted)}"
    return next((why for wrong, why in _flaws(work, result) if wrong), "")


def _flaws(work: Work | None, result: Result | Recalled | None) -> list[tuple[bool, str]]:
    """(whether a result has this flaw, the flaw) for every possible flaw of a result of the right kind."""
    produces = getattr(work, "produces", "")
    made = getattr(getattr(result, "ref", None), "id", produces)
    samples, moved = getattr(result, "samples", 0), getattr(result, "bytes", 0)
    flaws = [
        (made != produces, f"it made model {made!r} in place of {produces!r}"),
        (samples > MOST_SAMPLES, f"it says that it has {samples} samples"),
        (moved > MOST_BYTES, f"it says that it moved {moved} bytes"),
    ]
    match result:
        case Trained(update=update) if update is not None:
            asked = isinstance(work, Train) and work.reveal is not None and update.id == update_of(produces)
            flaws.append((not asked, f"it revealed {update.id!r}, which was not asked for"))
        case Evaluated(correct=correct, squared_distance=distance):
            flaws += [
                (correct > samples, f"{correct} right answers on {samples} samples"),
                (math.isnan(distance) or distance < 0, f"a squared distance of {distance}"),
            ]
        case Described(class_counts=counts):
            flaws += [
                (count > MOST_SAMPLES, f"it says that it has {count} samples of class {label}")
                for label, count in enumerate(counts)
            ]
        case Recalled(model_ids=model_ids):
            unknown = set(model_ids) - set(work.model_ids if isinstance(work, Recall) else ())
            flaws.append((bool(unknown), f"it holds {sorted(unknown)}, which were not asked for"))
    return flaws


def _name(kind: type) -> str:
    return "nothing" if kind is NoneType else kind.__name__
