"""A task whose trainings only last: the machines of this benchmark share the processors of one."""

from __future__ import annotations

import time

import torch
from torch import nn

from benchmarks.performance.idle_task import IdleTask


class _Lasting(nn.Module):
    def __init__(self, model: nn.Module, seconds: float) -> None:
        super().__init__()
        self.inner = model
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self._seconds)
        found: torch.Tensor = self.inner(x)
        return found


class LastingTask(IdleTask):
    """Options: `clients`, `parameters`, and `seconds`, which each training takes."""

    def __init__(self, clients: int, parameters: int, seconds: float) -> None:
        super().__init__(clients, parameters)
        self._seconds = seconds

    def model(self) -> nn.Module:
        return _Lasting(super().model(), self._seconds)


def task(clients: int = 4, parameters: int = 1000, seconds: float = 0.0) -> LastingTask:
    """The task, for --task benchmarks.scale.task:task."""
    return LastingTask(clients, parameters, seconds)
