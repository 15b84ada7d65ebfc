"""A small task with dropout and batch normalisation, whose code can be made to misbehave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgsp import ClientData, Split
from fedgsp import Task as BaseTask


class Blobs(BaseTask):
    """Client c has 10 + c samples of 6 numbers in 3 classes."""

    num_classes = 3

    def __init__(self, clients: int = 4, on_loss: Callable[[], Any] = lambda: None) -> None:
        self.clients = clients
        self.on_loss = on_loss

    @property
    def num_clients(self) -> int:
        return self.clients

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        y = rng.integers(0, 3, 15 + client)
        x = (rng.normal(size=(15 + client, 6)) + y[:, None]).astype(np.float32)
        return ClientData(Split(x[5:], y[5:]), Split(x[:5], y[:5]))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.on_loss()
        return super().loss(outputs, targets)


class Mistyped(Blobs):
    """Its score is a name that metrics() does not return, and that stands in `combine`."""

    score = "mea"
    combine = {"mea": "samples"}  # noqa: RUF012 - as a task of a user has it

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        return {"mae": 1.0}
