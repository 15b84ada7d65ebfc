"""Handwritten digits that ship with scikit-learn: 1,797 images of 8 x 8, nothing to download."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.partitions import hold_out, partition_indices


class Digits(Task):
    """The digits, dealt to clients with unlike label mixes; each client tests on samples of its own."""

    num_classes = 10

    def __init__(
        self,
        clients: int = 24,
        partition: str = "dirichlet",
        alpha: float | None = None,
        min_size: int | None = None,
        shards_per_client: int | None = None,
        shards: int | None = None,
        test_share: float = 0.2,
        seed: int = 0,
    ) -> None:
        numbers = {"alpha": alpha, "min_size": min_size, "shards_per_client": shards_per_client, "shards": shards}
        images, labels = load_digits(return_X_y=True)
        self._x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        self._y = labels.astype(np.int64)
        parts = partition_indices(partition, self._y, clients, stream(seed, "partition"), numbers)
        self._rows = []
        for client, part in enumerate(parts):
            train, test = hold_out(self._y[part], test_share, stream(seed, "test-part", client))
            self._rows.append((part[train], part[test]))

    @property
    def num_clients(self) -> int:
        """As many as were asked for."""
        return len(self._rows)

    def model(self) -> nn.Module:
        """Two convolutions, 10,026 parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            # Normalised per sample: learns as quickly as with batch statistics, and nothing but parameters travels.
            nn.GroupNorm(1, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.GroupNorm(1, 32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 1, 8, 8) in 0..1, labels as int64."""
        train, test = self._rows[client]
        return ClientData(Split(self._x[train], self._y[train]), Split(self._x[test], self._y[test]))
