"""The task digits at sites of different speeds: a client pauses in every training step, some clients for longer."""

from __future__ import annotations

import time

import numpy as np
import torch

from fedgsp import ClientData
from fedgsp_node.tasks.digits import Digits


class SlowSites(Digits):
    """`slow` are factors on the pause of that many clients, drawn by the seed. A node hosts one client."""

    def __init__(self, clients: int = 24, pause: float = 0.01, slow: str = "20", seed: int = 0) -> None:
        super().__init__(clients, seed=seed)
        factors = [float(factor) for factor in slow.split("/") if factor]
        self._pauses = np.full(clients, pause)
        self._pauses[np.random.default_rng(seed).permutation(clients)[: len(factors)]] *= factors
        self._pause = 0.0

    def data(self, client: int) -> ClientData:
        self._pause = float(self._pauses[client])
        return super().data(client)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            time.sleep(self._pause)
        return super().loss(outputs, targets)
