"""A task whose model has buffers: floats to average, counters to keep."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedgsp import ClientData, Split
from fedgsp import Task as BaseTask


class Task(BaseTask):
    num_classes = 2
    num_clients = 4

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        x = rng.normal(client, 1, (20, 3)).astype(np.float32)
        y = (x.sum(axis=1) > 3 * client).astype(np.int64)
        return ClientData(Split(x[:15], y[:15]), Split(x[15:], y[15:]))
