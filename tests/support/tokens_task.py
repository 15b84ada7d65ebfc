"""A class for each token: client 0 has ten labels per sample, client 1 has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedgsp import ClientData, Split, Task


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x.unsqueeze(-1)).movedim(-1, 1)


class Tokens(Task):
    num_clients, num_classes = 2, 3

    def model(self) -> torch.nn.Module:
        return Tagger()

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        x = rng.normal(size=(20, 10)).astype(np.float32)
        y = rng.integers(0, 3, (20, 10))
        if client:
            y[:, 1:] = -100  # no label
        return ClientData(Split(x, y), Split(x, y))


class Partly(Tokens):
    """Client 1 has no validation part, and a figure is no number."""

    def data(self, client: int) -> ClientData:
        found = super().data(client)
        return found if client else ClientData(found.train, found.test, found.test)

    def metrics(self, outputs: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {"odd": float("nan")}


class Endless(Tokens):
    """The loss of client 1 is infinite."""

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs, y) + (float("inf") if (y == -100).any() else 0.0)
