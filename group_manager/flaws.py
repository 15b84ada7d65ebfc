"""What may be wrong with the result that a node reports for an order."""

import math
from types import NoneType

from fedgsp.limits.items import MOST_CLASSES
from fedgsp.messages import (
    MOST_SAMPLES,
    Describe,
    Described,
    Discriminate,
    Discriminated,
    Evaluate,
    Evaluated,
    Initialise,
    ModelRef,
    Recall,
    Recalled,
    Result,
    Source,
    SourceKind,
    Start,
    Train,
    Trained,
    Work,
)
from fedgsp.names import TEXT_RULE, is_text
from fedgsp.tensors.updates import update_of
from fedgsp.tensors.weights import CODINGS
from group_manager.deadline import UNKNOWN, Need

#: Bytes that an order can have moved; sums of such numbers fit a message.
MOST_BYTES = 1 << 56
#: Seconds that a training can have taken, some 30 years.
MOST_SECONDS = 1e9
#: Local steps (FedNova) that a node may report: so many for each step of the order, momentum of 0.9 gives ten; and at
#: least one in so many, because the fewer they are, the further its update is carried.
STEPS_FACTOR = 16
#: Kind of work -> kind of its result; other kinds of work have none.
_ANSWERS: dict[type, type] = {
    Train: Trained,
    Initialise: Trained,
    Evaluate: Evaluated,
    Describe: Described,
    Discriminate: Discriminated,
    Recall: Recalled,
}


def flaw(work: Work | None, result: Result | Recalled | None, needed: Need = UNKNOWN) -> str:
    """What is wrong with the result of an order that needed so many steps; empty if nothing is."""
    wanted = _ANSWERS.get(type(work), NoneType)
    if type(result) is not wanted:
        return f"it answered {_name(type(result))} in place of {_name(wanted)}"
    return next((why for wrong, why in _flaws(work, result, needed) if wrong), "")


def _flaws(work: Work | None, result: Result | Recalled | None, needed: Need) -> list[tuple[bool, str]]:
    """(whether a result has this flaw, the flaw) for every possible flaw of a result of the right kind."""
    produces = getattr(work, "produces", "")
    ref = getattr(result, "ref", None) or ModelRef("")
    samples, moved = getattr(result, "samples", 0), getattr(result, "bytes", 0)
    source = getattr(result, "source", None) or Source(SourceKind.UNSPECIFIED, "")
    given, came = getattr(work, "start", None) or Start("", ()), getattr(result, "start", None) or ModelRef("")
    flaws = [
        (ref.id != produces, f"it made model {ref.id!r} in place of {produces!r}"),
        (came.id not in ("", given.model_id), f"it began with model {came.id!r} in place of {given.model_id!r}"),
        # Nobody could look it up: a log that has such a start would not hold.
        (bool(came.digest) and not came.id, "it began with a model that it does not name"),
        (b"" not in (given.digest, came.digest) and given.digest != came.digest, "it began with another model"),
        (samples > MOST_SAMPLES, f"it says that it has {samples} samples"),
        (moved > MOST_BYTES, f"it says that it moved {moved} bytes"),
        (source.travelled > MOST_BYTES, f"it says that {source.travelled} bytes travelled"),
        (source.coding not in ("", *CODINGS), f"its start came in the unknown way {source.coding[:40]!r}"),
    ]
    on_training_part = isinstance(work, Evaluate) and work.training_part and not work.only_compare
    if needed.samples and (isinstance(work, Train) or on_training_part):
        why = f"it says that it has {samples} training samples, and said {needed.samples} when it joined"
        flaws.append((samples != needed.samples, why))
    if isinstance(result, Trained):
        flaws.append((not 0 <= result.seconds <= MOST_SECONDS, f"it says that it trained for {result.seconds:g} s"))
    if isinstance(result, Trained) and isinstance(work, Train) and needed != UNKNOWN:
        few, many = 1 / STEPS_FACTOR, STEPS_FACTOR * needed.least
        # 0: the training has no such number.
        possible = result.steps == 0 or few <= result.steps <= many
        flaws.append((not possible, f"it says that it took {result.steps:g} local steps, not {few:g} to {many:g}"))
    if isinstance(result, Trained) and isinstance(work, Train) and work.measure_accuracy:
        told, guess = result.train_accuracy, 1 / MOST_CLASSES
        flaws.append((not guess <= told <= 1, f"it says that its training accuracy is {told:g}, not {guess:g} to 1"))
    match result:
        case Trained(update=update) if update is not None:
            asked = isinstance(work, Train) and work.reveal is not None and update.id == update_of(produces)
            flaws.append((not asked, f"it revealed {update.id!r}, which was not asked for"))
        case Evaluated(correct=correct, judged=judged, squared_distance=distance, metrics=metrics):
            flaws += [
                (not all(map(is_text, metrics)), f"the name of a metric has to be {TEXT_RULE}"),
                (not result.denominators.keys() <= metrics.keys(), "it gave a denominator without its numerator"),
                (correct > judged, f"{correct} right answers on {judged} labels"),
                (judged > MOST_SAMPLES, f"it says that it has {judged} labels"),
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
    for made in (ref, getattr(result, "update", None) or ModelRef("")):
        flaws.append((bool(made.id) and not made.digest, f"it made {made.id!r} without a digest"))
    return flaws


def _name(kind: type) -> str:
    return "nothing" if kind is NoneType else kind.__name__
