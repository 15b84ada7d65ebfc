"""A task: two half moons of points, cut among the clients."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedgsp import ClientData, Split, Task


class TwoMoons(Task):
    """Client i has 10 + 4 i points."""

    num_classes = 2

    def __init__(self, clients: int = 4, noise: float = 0.1) -> None:
        self.num_clients = clients
        self._noise = noise

    def model(self) -> nn.Module:
        """A small network."""
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    def data(self, client: int) -> ClientData:
        """Points by the client's own seed."""
        rng = np.random.default_rng(client)
        return ClientData(self._points(rng, 10 + 4 * client), self._points(rng, 10))

    def _points(self, rng: np.random.Generator, count: int) -> Split:
        y = np.arange(count) % 2
        angle = rng.uniform(0, np.pi, count)
        x = np.stack([np.cos(angle) + y, np.where(y, -np.sin(angle) + 0.5, np.sin(angle))], axis=1)
        return Split((x + rng.normal(0, self._noise, x.shape)).astype(np.float32), y)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(outputs, targets)
