"""Buffers that are views of each other would come apart in a training, and are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import check
from fedgsp.errors import TaskError
from fedgsp_node.model_check import check_model
from tests.support.blobs_task import Blobs


class Holding(nn.Module):
    """A model with buffers, and with tensors and arrays as attributes."""

    def __init__(self, buffers: dict[str, torch.Tensor], attributes: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=not name.startswith("temporary"))
        vars(self).update(attributes or {})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(x)
        return found


def views(dtype: torch.dtype = torch.float32, temporary: bool = False) -> nn.Module:
    whole = torch.zeros(2, 6, dtype=dtype)
    return Holding({"whole": whole, "temporary_row" if temporary else "row": whole[0]})


def column() -> nn.Module:
    whole = torch.zeros(2, 6)
    return Holding({"whole": whole}, {"column": whole[:, 2]})


def of_an_attribute() -> nn.Module:
    array = np.zeros((2, 3))
    return Holding({"row": torch.from_numpy(array[1])}, {"array": array[::-1]})


def of_one_array() -> nn.Module:
    array = np.zeros(3)
    return Holding({"first": torch.from_numpy(array), "second": torch.from_numpy(array)})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (views, "buffer 'row' shares memory with its buffer 'whole', and would not follow it; copy the values with"),
        (lambda: views(torch.bfloat16), "buffer 'row' shares memory with its buffer 'whole'"),
        (lambda: views(temporary=True), "buffer 'temporary_row' shares memory with its buffer 'whole'"),
        (column, "attribute 'column' shares memory with its buffer 'whole'"),
        (of_an_attribute, "attribute 'array' shares memory with its buffer 'row'"),
        (of_one_array, "buffer 'second' shares memory with its buffer 'first'"),
    ],
)
def test_they_are_refused_by_both_names(make: Callable[[], nn.Module], told: str) -> None:
    task = Blobs()
    task.model = make  # type: ignore[method-assign]
    with pytest.raises(TaskError, match=re.escape(told)):
        check(task)


def same_object() -> nn.Module:
    one = torch.zeros(3)
    return nn.Sequential(Holding({"first": one, "second": one}), Holding({"third": one}, {"kept": one}))


def interleaved() -> nn.Module:
    """As tables of sines and cosines often are; the addresses of the one lie between those of the other."""
    sine, cosine = torch.zeros(4, 6).chunk(2, dim=1)
    return Holding({"sine": sine, "cosine": cosine}, {"imaginary": torch.zeros(3, dtype=torch.complex64).imag})


def attributes_alone() -> nn.Module:
    whole = torch.zeros(2, 6)
    return Holding({}, {"whole": whole, "row": whole[0]})


@pytest.mark.parametrize(
    "make",
    [
        same_object,
        interleaved,
        attributes_alone,
        lambda: Holding({"empty": torch.zeros(0), "spread": torch.zeros(1).expand(5)}),
        lambda: Holding({"first": torch.zeros(3)}, {"nowhere": torch.zeros(3, device="meta")}),
    ],
)
def test_what_stays_together_or_shares_nothing_passes(make: Callable[[], nn.Module]) -> None:
    check_model(make())
