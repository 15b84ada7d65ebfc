"""Which steps of a training are on few samples, and when such a step stands alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.messages import Discriminate, DiscriminatorSettings, Evaluate, OptimizerSettings, Train, Work
from fedgsp_node.policies.policy import refusal
from fedgsp_node.policies.short_steps import Course, batches_of_epochs, least_step
from tests.fedgsp_node.policies.test_policy import SETTINGS, START, known, order, policy, trained


def by_hand(samples: int, size: int, epochs: int, accumulate: int, drop_last: bool) -> list[int]:
    """The samples of each step."""
    epoch = [size] * (samples // size) + ([samples % size] if samples % size else [])
    if drop_last and len(epoch) > 1 and epoch[-1] < size:
        epoch.pop()
    batches = epoch * epochs
    return [sum(batches[begin : begin + accumulate]) for begin in range(0, len(batches), accumulate)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 7])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_short_steps_are_those_with_fewer_samples_than_a_batch(epochs: int, accumulate: int, drop_last: bool) -> None:
    for samples in range(1, 25):
        for size in range(1, samples + 1):
            batches = batches_of_epochs(samples, size, epochs, drop_last)
            course = Course(samples, size, batches, accumulate, drop_last)
            steps = by_hand(samples, size, epochs, accumulate, drop_last)
            assert course.steps == len(steps)
            short = [number for number, count in enumerate(steps, 1) if count < size]
            assert list(course.short()) == short
            assert {steps[number - 1] for number in short} <= {course.left_over}


def test_steps_before_an_evaluation_may_end_before_the_short_batch() -> None:
    assert list(Course(11, 5, 2).short()) == []
    assert list(Course(11, 5, 7).short()) == [3, 6]


def stepped(name: str = "sgd", **changes: Any) -> Train:
    options = {key: str(value) for key, value in changes.pop("options", {}).items()}
    how = {key: changes.pop(key) for key in ("schedule", "schedule_options", "accumulate", "state") if key in changes}
    return trained(optimizer=OptimizerSettings(name, options, **how), **changes)


def alone(work: Work, samples: int = 11, drop_last: bool = False) -> bool:
    """Whether an order takes a step on one sample that stands alone."""
    found = least_step(order(work), samples, drop_last)
    assert found is not None
    return found.short and found.samples == 1


DECAY = {"weight_decay": 6}  # times a step size of 0.1


@pytest.mark.parametrize(
    ("work", "samples", "expected"),
    [
        (trained(), 11, False),
        (stepped(options=DECAY), 11, True),
        (stepped(options=DECAY), 10, False),
        (stepped(options=DECAY), 12, False),
        (stepped(options=DECAY), 5, False),
        (stepped(options={"weight_decay": 5}), 11, False),
        (stepped(options={"weight_decay": 5.1}), 11, True),
        (stepped(options={"weight_decay": 3}, algorithm="fedprox"), 11, False),
        (stepped(options=DECAY, accumulate=2), 11, True),
        (stepped(options=DECAY, accumulate=3), 11, False),
        (stepped(options=DECAY, accumulate=2, local_epochs=2), 11, False),
        (trained(algorithm="fedprox", options={"mu": "6"}), 11, True),
        (trained(algorithm="fedprox", options={"mu": "4"}), 11, False),
        (stepped(options={"weight_decay": 3}, algorithm="ditto"), 11, False),
        (trained(algorithm="ditto", options={"lambda": "6"}), 11, True),
        # Each batch begins at the shared model, which keeps what earlier batches have added.
        (trained(algorithm="pfedme", options={"lambda": "15", "personal_rate": "0.1"}), 11, False),
        (stepped(options=DECAY, algorithm="pfedme"), 11, True),
        (trained(algorithm="fedmmd"), 11, False),
        (trained(algorithm="fedmmd", options={"lambda": "2"}), 11, True),
        (trained(algorithm="fedmmd"), 6, True),  # the first of two steps has no discrepancy
        (trained(algorithm="fedmmd", options={"lambda": "0"}), 6, False),
        (trained(algorithm="fedfusion"), 6, False),
        (trained(algorithm="finetune"), 6, False),
        (trained(algorithm="own-head"), 6, False),
        (stepped(schedule="linear"), 11, False),
        (stepped(schedule="constant", schedule_options={"warmup": "1"}), 6, False),
        (stepped(schedule="constant", schedule_options={"warmup": "1"}, options={"weight_decay": 0.01}), 6, False),
        (stepped(schedule="constant", schedule_options={"warmup": "1"}, options={"weight_decay": 1}), 6, True),
        (stepped("radam", batch_size=2, learning_rate=0.001), 11, True),  # step 6
        (stepped("radam", batch_size=2, learning_rate=0.001), 9, False),
        (stepped("adam", learning_rate=0.001, options={"beta2": 0.1}), 11, False),
        (stepped("adam", learning_rate=0.001, options={"beta2": 0.1}, state="kept"), 11, True),
        (stepped("adam", learning_rate=0.001, state="relayed"), 11, False),
        (stepped("asgd", learning_rate=0.001, state="relayed"), 11, True),
        (stepped("nobody", options=DECAY), 11, False),  # it fails later, by name
        (trained(algorithm="fedprox", options={"mu": "many"}), 11, False),
    ],
)
def test_a_step_stands_alone_if_less_than_half_of_the_step_before_is_left(
    work: Train, samples: int, expected: bool
) -> None:
    assert alone(work, samples) is expected
    assert not alone(work, samples, drop_last=True)


def test_a_pull_and_weight_decay_add_up() -> None:
    both = dataclasses.replace(
        SETTINGS, algorithm="fedprox", options={"mu": "3"}, optimizer=OptimizerSettings("sgd", {"weight_decay": "3"})
    )
    assert alone(trained(**{field.name: getattr(both, field.name) for field in dataclasses.fields(both)}))


def test_halves_of_batches_have_enough_samples() -> None:
    halved = trained(algorithm="per-fedavg", batch_size=9)
    found = least_step(order(halved), 100)
    assert found is not None
    assert found.samples == 4
    assert "it asks for batches of 4" in str(refusal(order(halved), policy(least_batch_size="5"), known()))
    assert refusal(order(halved), policy(least_batch_size="4"), known()) is None
    # 15 samples are a batch of 9, and one of 6 in halves of 3; momentum is no plain step.
    odd = stepped(algorithm="per-fedavg", batch_size=9, options={"momentum": 0.1})
    assert least_step(order(odd), 15) == (3, True)
    assert least_step(order(odd), 12) == (4, False)  # a batch of 3 is left out


def test_before_an_evaluation_steps_are_on_whole_batches_and_have_no_pull() -> None:
    def adapting(steps: int, **changes: Any) -> Evaluate:
        return Evaluate(START, settings=stepped(**changes).settings, personalised=True)

    work = adapting(3, algorithm="finetune", options=DECAY)
    assert work.settings is not None
    for steps, expected in ((2, False), (3, True), (4, True)):
        settings = dataclasses.replace(work.settings, options={"steps": str(steps)})
        assert alone(dataclasses.replace(work, settings=settings)) is expected
    assert not alone(adapting(1, options=DECAY))  # `sgd` takes none


def test_discriminators_train_on_their_own_part_of_the_samples() -> None:
    few = Discriminate(None, "nets", (1,), DiscriminatorSettings(3, 1, 8, 0.01, 1))
    assert least_step(order(few), 100) == (3, False)


def test_a_policy_that_allows_single_samples_allows_that_they_stand_alone() -> None:
    work = order(stepped(options=DECAY))
    assert "a step on 1 sample" in str(refusal(work, policy(), known(samples=11)))
    assert refusal(work, policy(), known(samples=11, drop_last=True)) is None
    assert refusal(work, policy(least_batch_size="1"), known(samples=11)) is None
