"""A task from outside FedGSP, with buffers and dropout. For one client in one round, it fails or learns too fast.

Each run gets a copy of this file in its working directory, and names it by `--task golden_task:GoldenTask`.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedgsp import ClientData, Split, Task


class GoldenTask(Task):
    """Digits, divided so that each client has few samples of most classes. The data depend on `clients` alone.

    `client` is the client with the fault, `round` the round in which it happens, and `fault` what happens there:
    "none", "raises" (the model raises an exception) or "jumps" (the update becomes very long). `width` is the number
    of hidden units.
    """

    num_classes = 10
    head = ("last.",)

    def __init__(
        self, clients: int = 7, client: int = 3, round: int = 2, fault: str = "none", width: int = 24
    ) -> None:
        self.num_clients = clients
        self._fault, self._place, self._width = fault, (round, client), width
        found = load_digits()
        self._x = (found.data / 16).astype(np.float32)
        self._y = found.target.astype(np.int64)
        # Every tenth sample goes to any client, the others to the client that their label chooses.
        anywhere = np.arange(len(self._y)) % 10 == 0
        self._owner = np.where(anywhere, np.arange(len(self._y)) // 10, self._y) % clients

    def model(self) -> torch.nn.Module:
        return _Model(self._width, self._fault, training_seed(0, *self._place))

    def data(self, client: int) -> ClientData:
        rows = np.flatnonzero(self._owner == client)
        train, test = rows[len(rows) // 5 :], rows[: len(rows) // 5]
        return ClientData(Split(self._x[train], self._y[train]), Split(self._x[test], self._y[test]))


def training_seed(seed: int, number: int, client: int) -> int:
    """The number by which a node seeds torch before `client` trains in round `number`: see docs/algorithms.md, 0."""
    return int(np.random.default_rng([seed, zlib.crc32(b"training"), number, client]).integers(2**63))


class _Model(torch.nn.Module):
    def __init__(self, width: int, fault: str, seed: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.dropout = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(width, 10)
        self._fault, self._seed = fault, seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(self.dropout(torch.relu(self.norm(self.first(x)))))
        # The model learns from the seed which client trains in which round, because it has no other source.
        if self.training and torch.initial_seed() == self._seed:
            if self._fault == "raises":
                raise RuntimeError("the scanner is offline")
            if self._fault == "jumps":
                return outputs * 500
        return outputs
