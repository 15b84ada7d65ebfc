"""A model that changes the form of its state is told when a node starts, and in a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import check
from fedgsp.errors import TaskError
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs


class Running(nn.Module):
    """A running mean of its inputs, which begins with a value."""

    mean: torch.Tensor

    def __init__(self, first: torch.Tensor, after: int = 0) -> None:
        super().__init__()
        self.register_buffer("mean", first)
        self.last = nn.Linear(6, 3)
        self.batches, self.after = 0, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(x)
        if self.training:
            self.batches += 1
            if self.batches > self.after:
                self.mean = self.become(x.detach())
        return x - (0 if self.mean is None else self.mean.float())

    def become(self, x: torch.Tensor) -> Any:
        return 0.9 * self.mean + 0.1 * x.mean().to(x.dtype)


class Forgetting(Running):
    def become(self, x: torch.Tensor) -> Any:
        return None


class Last(Running):
    def become(self, x: torch.Tensor) -> Any:
        return x.mean()


class Counts(Running):
    def become(self, x: torch.Tensor) -> Any:
        return torch.tensor(len(x))


class Flags(Running):
    def become(self, x: torch.Tensor) -> Any:
        return x[0] > 0


def task_of(make: Callable[[], nn.Module]) -> Blobs:
    task = Blobs()
    task.model = make  # type: ignore[method-assign]
    return task


def trained(clients: Clients, optimizer: OptimizerSettings | None = None) -> Any:
    settings = TrainingSettings("sgd", 2, 7, 0.05, seed=11, optimizer=optimizer)
    return clients.train(2, clients.initial_weights(3), settings, 1, Control()).after.arrays["mean"]


@pytest.mark.parametrize(
    ("kind", "first", "told"),
    [
        (
            Running,
            torch.tensor(0),
            r"the dtype of its tensor 'mean' from int64 to float32; make it .* with the dtype torch\.float32$",
        ),
        (Running, torch.tensor(0.0, dtype=torch.float16), "the dtype of its tensor 'mean' from float16 to float32"),
        (Running, torch.zeros(3, dtype=torch.bool), "the dtype of its tensor 'mean' from bool to float32"),
        (Counts, torch.tensor(0, dtype=torch.int32), r"from int32 to int64; .* with the dtype torch\.int64$"),
        (Counts, torch.tensor(False), r"from bool to int64; .* with the dtype torch\.int64$"),
        (Last, torch.zeros(3), r"the shape of its tensor 'mean' from \(3,\) to \(\); make it in model\(\) with the"),
        (Forgetting, torch.zeros(3), "the model removed its tensor 'mean'; let it keep"),
    ],
)
def test_another_form_is_told_before_and_in_a_training(kind: type[Running], first: torch.Tensor, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        check(task_of(lambda: kind(first.clone())))
    clients = Clients(task_of(lambda: kind(first.clone(), after=3)), None)
    clients.rehearse()  # sees fewer batches
    with pytest.raises(OrderError, match=told):
        trained(clients)


def test_a_tensor_that_one_client_has_removed_does_not_lack_silently_for_the_next() -> None:
    clients = Clients(task_of(lambda: Forgetting(torch.zeros(3))), None)
    for told in ("the model removed its tensor 'mean'", "the model has lost its tensor 'mean'"):
        with pytest.raises(OrderError, match=told):
            trained(clients)


def test_a_dtype_whose_values_fit_is_taken() -> None:
    found = trained(Clients(task_of(lambda: Flags(torch.zeros(3, dtype=torch.int64))), None))
    assert (found.dtype, sorted({0, 1} | set(found.tolist()))) == (np.int64, [0, 1])
    mixed = OptimizerSettings("sgd", precision="bfloat16")
    task = task_of(lambda: Last(torch.tensor(0.0)))
    assert check(task).good
    found = trained(Clients(task, None), mixed)
    assert found.dtype == np.float32
    assert found == torch.tensor(float(found)).bfloat16().float().item()
    assert found != 0
