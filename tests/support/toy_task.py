"""The toy problem: client i has the loss 0.5 (w - c_i)^2 with c = (0, 4) and (1, 3) samples; w starts at 1."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedgsp import ClientData, Split
from fedgsp import Task as BaseTask

TARGETS = (0.0, 4.0)
SAMPLES = (1, 3)


class Toy(BaseTask):
    num_classes = 5
    num_clients = 2

    def model(self) -> nn.Module:
        return _Scalar()

    def data(self, client: int) -> ClientData:
        count = SAMPLES[client]
        part = Split(np.zeros((count, 1)), np.full(count, TARGETS[client]))
        return ClientData(part, part)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0.5 * (outputs - targets).square().mean()

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int:
        return int((outputs == targets).sum())


class _Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x))
