"""The task digits with a pause in every step. The bits are the same, and there is time for faults."""

from __future__ import annotations

import time

import torch

from fedgsp_node.tasks.digits import Digits


class SlowDigits(Digits):
    def __init__(self, clients: int, pause: float = 0.0) -> None:
        super().__init__(clients)
        self._pause = pause

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(self._pause)
        return super().loss(outputs, targets)
