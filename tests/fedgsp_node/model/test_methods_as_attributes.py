"""Methods of a task may be attributes of the object, such as a loss of torch that is made once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp.task import overrides
from fedgsp_node.clients import Clients
from fedgsp_node.tasks.attributes import check_attributes
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs

SETTINGS = TrainingSettings("sgd", 2, 7, 0.05, seed=11, optimizer=OptimizerSettings("auto"))


class Doses(Task):
    """A regression."""

    num_clients = 2

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))

    def data(self, client: int) -> ClientData:
        found = Blobs().data(client)
        parts = (Split(part.x, part.y.astype(np.float32)) for part in (found.train, found.test))
        return ClientData(*parts)


class Methods(Doses):
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(outputs, targets)

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, float]:
        return {"mae": float((outputs - targets).abs().mean())}

    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=learning_rate)


class Attributes(Doses):
    def __init__(self) -> None:
        self.loss = nn.HuberLoss()  # type: ignore[method-assign]
        self.metrics = lambda outputs, targets: {"mae": float((outputs - targets).abs().mean())}  # type: ignore
        self.optimizer = lambda parameters, rate: torch.optim.Adam(parameters, lr=rate)  # type: ignore


def test_they_train_and_are_rated_like_methods() -> None:
    results = []
    for task in (Methods(), Attributes()):
        check_attributes("the task", task, partial(getattr, task))
        clients = Clients(task, None)
        clients.rehearse()
        trained = clients.train(0, clients.initial_weights(3), SETTINGS, 1, Control())
        results.append((trained.after.buffer.tobytes(), clients.evaluate(0, trained.after, Control())))
    assert results[0] == results[1]
    assert set(results[1][1].metrics) == {"mae"}


def test_what_a_task_does_not_define_is_the_default() -> None:
    assert [overrides(Doses(), name) for name in ("loss", "metrics", "optimizer")] == [False] * 3
    assert [overrides(Attributes(), name) for name in ("loss", "metrics", "optimizer")] == [True] * 3
