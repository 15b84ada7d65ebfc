"""What an order chooses: a training that does not return what trainings return is told so, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedgsp.errors import RunError
from fedgsp.trainings import TRAININGS
from fedgsp_node.chosen import Chosen
from fedgsp_node.training.base import Algorithm, Result

OUTSIDE = dataclasses.replace(TRAININGS["sgd"], kind="training", name="sgd", package="mine 1.0")


def trained(found: Any) -> Result:
    nothing: Any = None
    return Chosen(OUTSIDE, Algorithm(lambda work: found), None).train(nothing)


@pytest.mark.parametrize("found", [None, 0.5, (1.0, 2.0, 3.0), ("low", 1), (torch.ones(2), 1)])
def test_a_training_that_returns_something_else_is_named(found: Any) -> None:
    with pytest.raises(RunError, match=r"training sgd of package mine 1[.]0 raised TypeError: it returned"):
        trained(found)


def test_a_loss_may_be_a_tensor_of_one_number() -> None:
    assert trained((torch.tensor(0.5), 3)) == Result(0.5, 3.0)
