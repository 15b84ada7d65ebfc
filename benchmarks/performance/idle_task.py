"""A task whose training costs nothing, so that a run shows what the system itself costs.

The model has one large tensor that is never used in the forward pass, beside a linear layer of four weights; a client
has one sample. Options: `clients`, and `parameters` of the large tensor (6,603,710 are LEAF's CNN for FEMNIST).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.performance.sizes import LEAF_CNN
from fedgsp import ClientData, Split, Task


class _Model(nn.Module):
    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.carried = nn.Parameter(torch.randn(parameters) * 0.01)
        self.used = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class IdleTask(Task):
    num_classes = 2

    def __init__(self, clients: int = 4, parameters: int = LEAF_CNN) -> None:
        self._clients, self._parameters = clients, parameters

    @property
    def num_clients(self) -> int:
        return self._clients

    def model(self) -> nn.Module:
        return _Model(self._parameters)

    def data(self, client: int) -> ClientData:
        one = Split(np.ones((1, 1), np.float32), np.array([client % 2]))
        return ClientData(one, one)


def task(clients: int = 4, parameters: int = LEAF_CNN) -> IdleTask:
    """For --task benchmarks.performance.idle_task:task."""
    return IdleTask(clients, parameters)
