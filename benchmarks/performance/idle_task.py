"""A task whose training costs almost nothing, so that a run shows the cost of the system.

The model has a linear layer with four weights, and a large tensor that the forward pass does not use. A client has one
sample. Options: `clients`; `parameters`, the size of the large tensor (LEAF's CNN for FEMNIST has 6,603,710); and
`seconds`, which each training lasts without using a processor.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from benchmarks.performance.sizes import LEAF_CNN
from fedgsp import ClientData, Split, Task


class _Model(nn.Module):
    def __init__(self, parameters: int, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self.carried = nn.Parameter(torch.randn(parameters).mul_(0.01))  # without a second tensor
        self.used = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self._seconds)
        return self.used(x)


class IdleTask(Task):
    num_classes = 2

    def __init__(self, clients: int = 4, parameters: int = LEAF_CNN, seconds: float = 0.0) -> None:
        self._clients, self._parameters, self._seconds = clients, parameters, seconds

    @property
    def num_clients(self) -> int:
        return self._clients

    def model(self) -> nn.Module:
        return _Model(self._parameters, self._seconds)

    def data(self, client: int) -> ClientData:
        one = Split(np.ones((1, 1), np.float32), np.array([client % 2]))
        return ClientData(one, one)


def task(clients: int = 4, parameters: int = LEAF_CNN, seconds: float = 0.0) -> IdleTask:
    """The task, for --task benchmarks.performance.idle_task:task."""
    return IdleTask(clients, parameters, seconds)
