"""Which updates are too long beside the others of their group, and those of rounds before."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.weights import Weights
from group_manager.norms import judge, length


@pytest.mark.parametrize(
    ("seen", "found", "taken"),
    [
        ([], 1e9, True),
        ([1.0, 1.0], 1e9, True),  # two are too few to say what is usual
        ([1.0, 1.0, 1.0], 10.0, True),
        ([1.0, 1.0, 1.0], 10.1, False),
        ([1.0, 2.0, 300.0], 20.0, True),  # one long update among them does not make others usual
        ([1.0, 2.0, 300.0], 20.1, False),
        ([1.0, 2.0, 4.0, 5.0], 30.0, True),  # between the two in the middle
        ([1.0, 2.0, 4.0, 5.0], 30.1, False),
        ([0.0, 0.0, 0.0], 0.0, True),
        ([0.0, 0.0, 0.0], 1e-9, False),
        ([1.0, 1.0, 1.0], math.inf, False),
    ],
)
def test_an_update_of_ten_times_the_median_is_the_longest_taken(seen: list[float], found: float, taken: bool) -> None:
    lengths = list(seen)
    refusal = judge(lengths, found, 10.0)
    assert lengths == [*seen, *([found] if taken else [])]  # what is refused is no measure for others
    assert (refusal is None) == taken
    if refusal is not None:
        assert refusal.code is FailureCode.LONG_UPDATE


def test_the_length_is_that_of_what_training_changed() -> None:
    specs = (TensorSpec("w", "float32", (2,)), TensorSpec("seen", "int64", (1,), False))

    def model(first: float, second: float, seen: int) -> Weights:
        return Weights.of({"w": np.array([first, second], np.float32), "seen": np.array([seen])}, specs)

    assert length(model(1, 1, 0), model(4, 5, 100)) == 5
