"""What a model keeps in plain attributes, or freezes as it computes, does not pass from client to client."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp.seeds import stream
from fedgsp.task import Task
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs

BATCH, RATE = 7, 0.05


class Keeps(nn.Module):
    """A running mean of its inputs, kept in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.last = way, nn.Linear(6, 3)
        self.mean = torch.zeros(6)
        self.held: Any = {
            "list": [],
            "queue": deque([torch.zeros(6)], maxlen=3),
            "dict": {"means": [torch.zeros(6)]},
            "tuple": (torch.zeros(6),),
            "array": np.zeros(6, np.float32),
            "array in place": np.zeros(6, np.float32),
            "read-only array": np.broadcast_to(np.float32(0), 6),
            "arrays": {"means": [np.zeros(6, np.float32), np.zeros(0)]},
            "number": np.float32(0),
        }.get(way)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(0)
        if self.way == "tensor":
            self.mean = mean = 0.9 * self.mean + 0.1 * mean
        elif self.way == "tensor in place":
            mean = self.mean.lerp_(mean, 0.1).clone()
        elif self.way in ("array", "read-only array"):
            self.held = 0.9 * self.held + 0.1 * mean.numpy()
            mean = torch.from_numpy(self.held).float()
        elif self.way in ("array in place", "arrays"):
            kept = self.held if self.way == "array in place" else self.held["means"][0]
            kept += 0.1 * mean.numpy()
            mean = torch.from_numpy(kept).clone()
        elif self.way == "number":
            self.held = np.float32(0.9) * self.held + np.float32(0.1) * np.float32(mean.mean())
            mean = torch.tensor(self.held)
        elif self.way == "tuple":
            mean = self.held[0].add_(mean).clone()
        else:
            means = self.held["means"] if self.way == "dict" else self.held
            means.append(mean)
            mean = torch.stack(list(means)).mean(0)
        found: torch.Tensor = self.last(x - mean)
        return found


class Freezing(nn.Module):
    """It freezes its second layer after two steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            self.second.requires_grad_(self.steps <= 2)
        outputs: torch.Tensor = self.last(self.second(self.first(x)))
        return outputs


class Thawing(Freezing):
    """Its first layer is frozen at first."""

    def __init__(self) -> None:
        super().__init__(4)
        self.first.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.requires_grad_(self.training)
        return super().forward(x)


def task_of(make: Any) -> Task:
    task = Blobs()
    task.model = make  # type: ignore[method-assign]
    return task


def trained(clients: Clients, client: int, start: Weights, optimizer: str = "") -> Weights:
    asked = OptimizerSettings(optimizer) if optimizer else None
    settings = TrainingSettings("sgd", 2, BATCH, RATE, seed=11, optimizer=asked)
    return clients.train(client, start, settings, 1, Control()).after


def plainly(task: Task, start: Weights, client: int, optimizer: str) -> dict[str, Any]:
    """A loop of torch."""
    module = task.model()
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.arrays.items()})
    data, order = task.data(client).train, stream(11, "batch-order", 1, client)
    x, y = torch.from_numpy(data.x.copy()), torch.from_numpy(data.y.copy())
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    optimiser = kind(module.parameters(), RATE)
    for _ in range(2):
        for rows in torch.split(torch.from_numpy(order.permutation(len(x))), BATCH):
            optimiser.zero_grad()
            task.loss(module(x[rows]), y[rows]).backward()
            optimiser.step()
    return module.state_dict()


def check_second_client(task: Task, optimizer: str = "") -> None:
    """The second client of a node trains as the only one of another node does, and as by a plain loop."""
    busy, fresh = Clients(task, None), Clients(task, None)
    start = fresh.initial_weights(3)
    trained(busy, 1, start, optimizer)
    busy.evaluate(3, start, Control())
    found = trained(busy, 2, start, optimizer)
    assert np.array_equal(found.buffer, trained(fresh, 2, start, optimizer).buffer)
    for name, expected in plainly(task, start, 2, optimizer).items():
        np.testing.assert_allclose(
            np.asarray(found.arrays[name], np.float64), expected.numpy(), rtol=1e-5, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize(
    "way",
    [
        *("tensor", "tensor in place", "list", "queue", "dict", "tuple"),
        *("array", "array in place", "read-only array", "arrays", "number"),
    ],
)
def test_a_tensor_or_a_collection_begins_for_each_client_as_the_model_was_made(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_second_client(task_of(lambda: Keeps(way)))
    # From an empty list, an attribute becomes what a layer keeps for speed.
    told = f"changed the attribute {'mean' if way.startswith('tensor') else 'held'!r} of its layer ''"
    assert (told in caplog.text) == (way != "list")


def test_an_attribute_that_does_not_change_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    class Constant(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.shift, self.unknown = torch.tensor([1.0, float("nan")]), float("nan")
            self.names, self.sizes, self.scales = ["a", "b"], {"a": 1}, (1.0, [2.0])
            self.array, self.number, self.words = np.array([1.0, np.nan]), np.float32("nan"), np.array(["a", "b"])
            self.arrays = [np.zeros(0), np.array([1.0, np.nan]), np.float64("nan")]

    clients = Clients(task_of(Constant), None)
    start = clients.initial_weights(3)
    for client in range(3):
        trained(clients, client, start)
    assert not caplog.records


def test_layers_that_have_the_same_array_still_have_it_for_the_next_client() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
            vars(self.first)["mean"] = vars(self.last)["mean"] = np.zeros(6, np.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept: Any = self.first.mean
            kept += 0.1 * x.mean(0).numpy()
            found: torch.Tensor = self.last(self.first(x) - torch.from_numpy(self.last.mean).clone())
            return found

    check_second_client(task_of(Both))


@pytest.mark.parametrize("optimizer", ["", "adamw"])
@pytest.mark.parametrize("width", [4, 600])
def test_what_a_model_freezes_as_it_computes_is_trained_again_for_the_next_client(width: int, optimizer: str) -> None:
    check_second_client(task_of(lambda: Freezing(width)), optimizer)


def test_a_layer_that_begins_to_train_although_it_was_made_frozen_is_told() -> None:
    clients = Clients(task_of(Thawing), None)
    with pytest.raises(OrderError, match=r"began to train its tensor 'first\.weight', which model\(\) returned with"):
        trained(clients, 1, clients.initial_weights(3))
