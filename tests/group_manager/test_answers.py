"""Whether a node's report can be the answer to its order: first of all of the kind that was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.messages import (
    Cancel,
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
    Release,
    Result,
    Reveal,
    SendUp,
    Source,
    SourceKind,
    Start,
    Train,
    Trained,
    Work,
)
from fedgsp.tensors.updates import update_of
from group_manager.deadline import Need
from group_manager.flaws import flaw

REF = ModelRef("m", 8, b"digest")
#: Every kind of work, and what answers it.
GOOD: list[tuple[Work, Result | Recalled | None]] = [
    (Train(None, "m", None), Trained(REF)),
    (Initialise("m", 1), Trained(REF)),
    (Evaluate(None), Evaluated(1, 2, 0.5, judged=2)),
    (Describe(), Described((1, 2))),
    (Discriminate(None, "m", (1,), None), Discriminated(REF)),
    (Recall("run/", ("m",)), Recalled(("m",))),
    (SendUp("m"), None),
    (Release(("m",)), None),
    (Cancel(), None),
]
KINDS = {type(answer): answer for _, answer in GOOD}


@pytest.mark.parametrize(("work", "right"), GOOD, ids=lambda one: type(one).__name__)
def test_an_order_has_one_kind_of_answer(work: Work, right: Result | Recalled | None) -> None:
    for kind, answer in KINDS.items():
        assert bool(flaw(work, answer)) == (kind is not type(right)), kind


@pytest.mark.parametrize(
    "work", [Train(Start("start", ()), "m", None), Initialise("m", 1)], ids=["without a digest", "initialise"]
)
def test_a_start_has_a_name(work: Work) -> None:
    """That of a relay has no digest in the order, and fresh weights have no start."""
    assert (
        flaw(work, Trained(REF, start=ModelRef("", digest=b"digest"))) == "it began with a model that it does not name"
    )
    assert flaw(work, Trained(REF, start=ModelRef(""))) == ""


@pytest.mark.parametrize("work", [Train(None, "m", None), Initialise("m", 1)], ids=["train", "initialise"])
@pytest.mark.parametrize("ref", [None, ModelRef(""), ModelRef("m", 8), ModelRef("other", 8, b"digest")])
def test_a_model_that_was_ordered_is_told_with_its_digest(work: Work, ref: ModelRef | None) -> None:
    assert "it made " in flaw(work, Trained(ref))


def test_a_revealed_update_is_told_with_its_digest() -> None:
    work = Train(None, "m", None, Reveal("exact"))
    assert not flaw(work, Trained(REF, update=ModelRef(update_of("m"), 8, b"digest")))
    assert "without a digest" in flaw(work, Trained(REF, update=ModelRef(update_of("m"), 8)))


def test_what_came_and_what_was_to_come_are_told() -> None:
    assert flaw(Evaluate(None), Described((1, 2))) == "it answered Described in place of Evaluated"
    assert flaw(Describe(), None) == "it answered nothing in place of Described"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"travelled": 7, "coding": "coded"}, ""),
        ({"coding": "memory"}, ""),
        ({"travelled": 1 << 62}, f"it says that {1 << 62} bytes travelled"),
        ({"coding": "x" * 99}, f"its start came in the unknown way '{'x' * 40}'"),
    ],
)
def test_how_a_start_came_is_one_of_few_ways(told: dict[str, Any], why: str) -> None:
    source = Source(SourceKind.NODE, "n1", **told)
    assert flaw(Train(None, "m", None), Trained(REF, source=source)) == why
    assert flaw(Evaluate(None), Evaluated(1, 2, 0.5, source=source, judged=2)) == why


@pytest.mark.parametrize("steps", [0.0, 1 / 16, 1.0, 11.0, 176.0])
def test_local_steps_that_an_order_can_take_are_believed(steps: float) -> None:
    assert not flaw(Train(None, "m", None), Trained(REF, steps=steps), Need(11, 100))


@pytest.mark.parametrize("steps", [float("nan"), float("inf"), -1.0, 1e-300, 0.06, 177.0, 1e300])
def test_local_steps_that_carry_an_update_far_are_refused(steps: float) -> None:
    """FedNova divides an update by its steps: of 1e-300 the whole group would be infinite, and end the run."""
    assert "local steps, not 0.0625 to 176" in flaw(Train(None, "m", None), Trained(REF, steps=steps), Need(11, 100))


@pytest.mark.parametrize("work", [Train(None, "m", None), Evaluate(None, training_part=True)])
@pytest.mark.parametrize("samples", [0, 52, 54, 1 << 40])
def test_training_samples_are_those_that_the_node_joined_with(work: Train | Evaluate, samples: int) -> None:
    joined, told = Need(11, 100, samples=53), f"it says that it has {samples} training samples, and said 53"
    result = Trained(REF, samples) if isinstance(work, Train) else Evaluated(0, samples, 0.0)
    assert told in flaw(work, result, joined)
    assert not flaw(work, dataclasses.replace(result, samples=53), joined)


def test_samples_of_the_test_part_and_of_a_comparison_are_others() -> None:
    for work in (Evaluate(None), Evaluate(None, training_part=True, compared_with="m", only_compare=True)):
        assert not flaw(work, Evaluated(0, 7, 0.0), Need(11, 100, samples=53))


@pytest.mark.parametrize("told", [float("nan"), 0.0, 5e-324, 1e-7, 1.01])
def test_training_accuracies_that_cannot_be_are_refused(told: float) -> None:
    """IDA divides by them: of 5e-324 a model would weigh more than a number can say."""
    work = Train(None, "m", None, measure_accuracy=True)
    assert "its training accuracy" in flaw(work, Trained(REF, train_accuracy=told))
    assert not flaw(work, Trained(REF, train_accuracy=0.1))


@pytest.mark.parametrize("seconds", [-1.0, 1.7e308, float("inf"), float("nan")])
def test_a_training_takes_a_possible_time(seconds: float) -> None:
    """Sums of these times, and drawings, would be no numbers."""
    assert "it says that it trained for" in flaw(Train(None, "m", None), Trained(REF, seconds=seconds))
    assert not flaw(Train(None, "m", None), Trained(REF, seconds=3600.0))
