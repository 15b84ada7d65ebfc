"""The digits with a body that stays as it was drawn; `shift` makes it another body."""

from __future__ import annotations

import torch
from torch import nn

from fedgsp_node.tasks.digits import Digits


class Frozen(Digits):
    def __init__(self, clients: int = 3, shift: float = 0.0, width: int = 8) -> None:
        super().__init__(clients)
        self.shift, self.width = shift, width

    def model(self) -> nn.Module:
        body = nn.Linear(64, self.width)
        with torch.no_grad():
            body.bias.add_(self.shift)
        body.requires_grad_(False)
        return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(self.width, 10))


class Tied(Digits):
    """Two layers share a matrix."""

    def model(self) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
        module[2].weight = module[1].weight
        return module


class Named(Frozen):
    """One of its clients has a name."""

    client_names = {1: "Charité"}  # noqa: RUF012 - as a task of a user has it
