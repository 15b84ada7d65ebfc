"""The digits, with clients whose training, or evaluation, goes wrong."""

from __future__ import annotations

import torch

from fedgsp import ClientData
from fedgsp_node.tasks.digits import Digits

#: Marks the samples of a client, so that the loss knows whose they are.
RAISES, DIVERGES, UNTESTABLE = 7.0, 9.0, 11.0


class FaultyDigits(Digits):
    def __init__(self, clients: int = 8, raises: str = "", diverges: int = -1, untestable: int = -1) -> None:
        super().__init__(clients=clients)
        self._marks = {**dict.fromkeys(map(int, filter(None, raises.split("+"))), RAISES), diverges: DIVERGES}
        self._untestable = untestable

    def data(self, client: int) -> ClientData:
        data = super().data(client)
        if client in self._marks:
            data.train.x[:, 0, 0, 0] = self._marks[client]
        if client == self._untestable:
            data.test.x[:, 0, 0, 0] = UNTESTABLE
        return data

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(_Watch(), *super().model().children())


class _Watch(torch.nn.Module):
    """Lets images pass, but not those of a client that is to fail; a node that tries two of them may start."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > 2 and bool((x[:, 0, 0, 0] == RAISES).any()):
            raise RuntimeError("the scanner is offline")
        if self.training and bool((x[:, 0, 0, 0] == DIVERGES).any()):
            return x * float("inf")
        if not self.training and bool((x[:, 0, 0, 0] == UNTESTABLE).any()):
            raise RuntimeError("the labels are sealed")
        return x
