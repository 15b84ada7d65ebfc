"""The digits at three sites, of which that of client 0 computes for seconds in every training step."""

from __future__ import annotations

import time

import torch

from fedgsp import ClientData
from fedgsp_node.tasks.digits import Digits

#: Processor time of a step, in seconds.
STEP_S = 3.0


class Task(Digits):
    def __init__(self) -> None:
        super().__init__(3)
        self._step_s = 0.0

    def data(self, client: int) -> ClientData:
        self._step_s = 0.0 if client else STEP_S
        return super().data(client)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ends = time.thread_time() + (self._step_s if torch.is_grad_enabled() else 0.0)
        while time.thread_time() < ends:
            pass
        return super().loss(outputs, targets)
