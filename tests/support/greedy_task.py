"""The digits, with a client that needs more memory than any machine has."""

from __future__ import annotations

import torch

from fedgsp_node.tasks.digits import Digits
from tests.support.faulty_task import RAISES, FaultyDigits


class GreedyDigits(FaultyDigits):
    def __init__(self, clients: int = 8) -> None:
        super().__init__(clients=clients, raises="5")

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(_Greedy(), *Digits.model(self).children())


class _Greedy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x[:, 0, 0, 0] == RAISES).any()):
            torch.empty(1 << 50)
        return x
