"""Which updates are too long beside the others of their group, and those of rounds before."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.weights import Weights
from group_manager.norm_limit import Lengths
from group_manager.update_norms import length


@pytest.mark.parametrize(
    ("seen", "found", "taken"),
    [
        ([1.0, 1.0, 1.0], 10.0, True),
        ([1.0, 1.0, 1.0], 10.1, False),
        ([1.0, 2.0, 300.0], 20.0, True),  # one long update among them does not make others usual
        ([1.0, 2.0, 300.0], 20.1, False),
        ([1.0, 2.0, 4.0, 5.0], 30.0, True),  # between the two in the middle
        ([1.0, 2.0, 4.0, 5.0], 30.1, False),
        ([0.0, 0.0, 0.0], 0.0, True),
        ([0.0, 0.0, 0.0], 1e-9, False),
        ([1.0, 1.0, 1.0], math.inf, False),
        ([1.0, 1.0], 10.0, True),  # it is one of three
        ([1.0, 1.0], 10.1, False),
    ],
)
def test_an_update_of_ten_times_the_median_is_the_longest_taken(seen: list[float], found: float, taken: bool) -> None:
    judging = Lengths(seen, 10.0)
    usual = judging.usual([found])
    assert usual is not None
    refusal = judging.judge(found, usual)
    assert (refusal is None) == taken
    if refusal is not None:
        assert refusal.code is FailureCode.LONG_UPDATE


def test_what_is_refused_is_no_measure_for_others() -> None:
    judging = Lengths([1.0, 1.0, 1.0, 1.0], 10.0)
    for _ in range(9):
        assert judging.judge(11.0, judging.usual([11.0]) or 0.0) is not None


@pytest.mark.parametrize(("seen", "waiting"), [([], []), ([], [1.0, 1.0]), ([1.0], [1.0]), ([1.0, 1.0], [])])
def test_two_are_too_few_to_say_what_is_usual(seen: list[float], waiting: list[float]) -> None:
    assert Lengths(seen, 10.0).usual(waiting) is None


def test_the_length_is_that_of_what_training_changed() -> None:
    specs = (TensorSpec("w", "float32", (2,)), TensorSpec("seen", "int64", (1,), False))

    def model(first: float, second: float, seen: int) -> Weights:
        return Weights.of({"w": np.array([first, second], np.float32), "seen": np.array([seen])}, specs)

    assert length(model(1, 1, 0), model(4, 5, 100)) == 5
