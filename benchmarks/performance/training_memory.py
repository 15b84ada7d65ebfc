"""Measures the peak memory of a client's training above an idle node, relative to the size of its model.

Training is one step with a batch of 5, from a received model to a result that is kept. This needs at least two models.
The process only trains. It trains once before the measurement, so that memory that torch keeps counts as idle.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.performance import memory
from benchmarks.performance.rows import Row, main
from fedgsp import ClientData, Split, Task

if TYPE_CHECKING:
    import torch

BATCH = 5
#: Training or optimiser -> how often the model fits into the peak. The received model and the result are always there;
#: AdamW needs the gradient and two moments as well.
LIMITS = {"sgd": 2.2, "fedprox": 2.2, "adamw": 5.5}


class Dense(Task):
    """A model of 62.5 million float32 parameters (250 MB) in four dense layers."""

    num_classes, num_clients = 62, 1

    def model(self) -> torch.nn.Module:
        from torch import nn

        widths = (784, 6144, 7168, 1800, 62)
        layers = [(nn.Linear(ins, outs), nn.ReLU()) for ins, outs in itertools.pairwise(widths)]
        return nn.Sequential(nn.Flatten(), *(layer for pair in layers for layer in pair))

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(0)
        part = Split(rng.random((BATCH, 1, 28, 28), np.float32), rng.integers(0, 62, BATCH))
        return ClientData(part, part)


class Convolutions(Dense):
    """A model of as many parameters in 27 convolutions."""

    def model(self) -> torch.nn.Module:
        from torch import nn

        inner = [layer for _ in range(26) for layer in (nn.Conv2d(512, 512, 3, padding=1), nn.ReLU())]
        return nn.Sequential(nn.MaxPool2d(7), nn.Conv2d(1, 512, 1), *inner, nn.Flatten(), nn.Linear(8192, 62))


TASKS: dict[str, type[Task]] = {"dense layers": Dense, "convolutions": Convolutions}


def _train(kind: str, algorithm: str) -> tuple[float, float]:
    """The peak memory above idle, and the size of the model, in bytes."""
    import torch

    from fedgsp.messages import OptimizerSettings, TrainingSettings
    from fedgsp.weights import Weights
    from fedgsp_node.clients import Clients
    from fedgsp_node.training.control import Control

    torch.set_num_threads(1)
    clients = Clients(TASKS[kind](), None)
    optimizer = OptimizerSettings(algorithm) if algorithm == "adamw" else None
    training = "sgd" if optimizer else algorithm
    settings = TrainingSettings(training, 1, BATCH, 0.01, seed=0, optimizer=optimizer)

    def turn() -> Weights:
        received = Weights.empty(clients.tensors)
        for array in received.arrays.values():
            array[...] = 0.001
        return clients.train(0, received, settings, 1, Control()).after

    turn()
    ctypes.CDLL(None).malloc_trim(0)
    idle = memory.resident(os.getpid())
    memory.begin_peak(os.getpid())
    size = turn().buffer.nbytes
    return float(memory.peak(os.getpid()) - idle), float(size)


def measure(repeats: int) -> list[Row]:
    rows = []
    for kind in TASKS:
        for algorithm, limit in LIMITS.items():
            ours, theirs = [], []
            for _ in range(repeats):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    peak, size = pool.apply(_train, (kind, algorithm))
                ours.append(peak / 2**20)
                theirs.append(size / 2**20)
            rows.append(
                Row(
                    f"peak of training above idle, {kind}, {algorithm}",
                    "MiB",
                    tuple(ours),
                    limit,
                    "the model",
                    tuple(theirs),
                )
            )
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=3)
