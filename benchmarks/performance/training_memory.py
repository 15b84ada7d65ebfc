"""Measures the peak memory of a client's training above an idle node, relative to the size of its model.

Training is one step with a batch of 5, from a received model to a result that is kept. The size of the model is that
of the tensors that train: frozen ones are there before. On paper, a training needs several times this size, see
`PARTS`; the limit is 1.1 times that. The process only trains. It trains once before the measurement, so that memory
that torch keeps counts as idle.
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
_ALWAYS = ("the received model", "the result")
#: Training or optimiser -> what it needs on paper, each of the size of the model. Plain SGD applies large gradients as
#: soon as they are computed.
PARTS = {
    "sgd": _ALWAYS,
    "fedprox": _ALWAYS,
    "adamw": (*_ALWAYS, "the gradient", "the first moments", "the second moments"),
}
#: The limit is so many times what is needed on paper.
ABOVE_PAPER = 1.1


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


class Narrow(Dense):
    """The dense layers in bfloat16: 125 MB."""

    def model(self) -> torch.nn.Module:
        from torch import nn

        class InBfloat16(nn.Sequential):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = nn.Sequential.forward(self, x.bfloat16())  # type: ignore[no-untyped-call]
                return found.float()

        return InBfloat16(*super().model().bfloat16())  # type: ignore[misc]  # a Sequential has its layers


class LowRank(Dense):
    """The dense layers frozen, each with a product of two matrices of rank 256 that train: 32 MB of 282."""

    def model(self) -> torch.nn.Module:
        from torch import nn

        class Adapted(nn.Module):
            def __init__(self, whole: nn.Linear) -> None:
                super().__init__()
                self.whole = whole.requires_grad_(False)
                self.down = nn.Linear(whole.in_features, 256, bias=False)
                self.up = nn.Linear(256, whole.out_features, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = self.whole(x) + self.up(self.down(x))
                return found

        layers = super().model().children()
        return nn.Sequential(*(Adapted(one) if isinstance(one, nn.Linear) else one for one in layers))


#: Name -> task, and the trainings that are measured with it.
TASKS: dict[str, tuple[type[Task], tuple[str, ...]]] = {
    "dense layers": (Dense, tuple(PARTS)),
    "convolutions": (Convolutions, tuple(PARTS)),
    "dense layers in bfloat16": (Narrow, ("sgd", "adamw")),
    "dense layers with LoRA": (LowRank, ("sgd", "adamw")),
}


def _train(kind: str, algorithm: str) -> tuple[float, float]:
    """The peak memory above idle, and the size of the model, in bytes."""
    import torch

    from fedgsp.messages import OptimizerSettings, TrainingSettings
    from fedgsp.tensors.weights import Weights
    from fedgsp_node.clients import Clients
    from fedgsp_node.training.control import Control

    torch.set_num_threads(1)
    clients = Clients(TASKS[kind][0](), None)
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
    for kind, (_, trainings) in TASKS.items():
        for algorithm in trainings:
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
                    round(ABOVE_PAPER * len(PARTS[algorithm]), 2),
                    "the model",
                    tuple(theirs),
                    note=f"on paper: {', '.join(PARTS[algorithm])}",
                )
            )
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=3)
