"""What shares memory with a parameter, or with what a training writes to, would come apart, and is refused."""

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
from fedgsp_node.model.model_check import check_model
from tests.support.blobs_task import Blobs


class Holding(nn.Module):
    """A model with buffers, and with tensors and arrays as attributes; `written` is the one that it writes to."""

    def __init__(
        self, buffers: dict[str, torch.Tensor], attributes: dict[str, Any] | None = None, written: str = ""
    ) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=not name.startswith("temporary"))
        vars(self).update(attributes or {})
        self.written = written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.written and self.training:
            getattr(self, self.written)[...] += 1
        found: torch.Tensor = self.last(x)
        return found


def views(dtype: torch.dtype = torch.float32, temporary: bool = False, written: str = "whole") -> nn.Module:
    whole = torch.zeros(2, 6, dtype=dtype)
    return Holding({"whole": whole, "temporary_row" if temporary else "row": whole[0]}, written=written)


def column(written: str) -> nn.Module:
    whole = torch.zeros(2, 6)
    return Holding({"whole": whole}, {"column": whole[:, 2]}, written)


def of_an_attribute(written: str) -> nn.Module:
    array = np.zeros((2, 3))
    return Holding({"row": torch.from_numpy(array[1])}, {"array": array[::-1]}, written)


def of_one_array(written: str) -> nn.Module:
    array = np.zeros(3)
    return Holding({"first": torch.from_numpy(array), "second": torch.from_numpy(array)}, written=written)


def beside_a_parameter() -> nn.Module:
    module = Holding({})
    module.register_buffer("copy", module.last.weight.detach()[0])
    return module


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (views, "buffer 'row' shares memory with its buffer 'whole', and would not follow it; copy the values with"),
        (lambda: views(written="row"), "buffer 'row' shares memory with its buffer 'whole'"),
        (lambda: views(torch.bfloat16), "buffer 'row' shares memory with its buffer 'whole'"),
        (lambda: views(temporary=True), "buffer 'temporary_row' shares memory with its buffer 'whole'"),
        (lambda: views(temporary=True, written="temporary_row"), "buffer 'temporary_row' shares memory with its buf"),
        (lambda: column("whole"), "attribute 'column' shares memory with its buffer 'whole'"),
        (lambda: column("column"), "attribute 'column' shares memory with its buffer 'whole'"),
        (lambda: of_an_attribute("array"), "attribute 'array' shares memory with its buffer 'row'"),
        (lambda: of_one_array("first"), "buffer 'second' shares memory with its buffer 'first'"),
        (beside_a_parameter, "buffer 'copy' shares memory with its parameter 'last.weight'"),
    ],
)
def test_they_are_refused_by_both_names(make: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(TaskError, match=re.escape(told)):
        check(task_of(make))


def task_of(make: Callable[[], nn.Module]) -> Blobs:
    task = Blobs()
    task.model = make  # type: ignore[method-assign]
    return task


def masks() -> nn.Module:
    """As of many layers, which take their part of one causal mask."""
    mask = torch.full((64, 64), float("-inf")).triu(1)
    return Holding({f"temporary{number}": mask[None, : number % 64, :8] for number in range(2000)})


def rotations() -> nn.Module:
    rotations = torch.polar(torch.ones(8, 4), torch.ones(8, 4))
    return Holding({"temporary_rotations": rotations, "temporary_pairs": torch.view_as_real(rotations)})


def of_one_zero() -> nn.Module:
    zero = torch.zeros(1)
    return Holding({"first": zero.expand(5), "second": zero.expand(7)})


def replaced() -> nn.Module:
    """The training gives one of them a new tensor, which changes no other."""

    class Replaces(Holding):
        mean: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean + 1
            return super().forward(x)

    mean = torch.zeros(3)
    return Replaces({"mean": mean, "first": mean[:]})


@pytest.mark.parametrize(
    "make",
    [
        masks,
        rotations,
        of_one_zero,
        replaced,
        lambda: views(written=""),
        lambda: column(""),
        lambda: of_an_attribute(""),
        lambda: of_one_array(""),
    ],
)
def test_constants_may_share_memory(make: Callable[[], nn.Module]) -> None:
    assert check(task_of(make)).good


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
