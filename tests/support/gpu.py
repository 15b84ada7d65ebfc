"""A GPU, for the tests that need one, and small models of the kinds that people train on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp_node.clients import Clients
from fedgsp_node.devices import prepare
from tests.support.local_work import Mixed, PartlyUnused, Tied, convolutions, mlp, norm_and_dropout, partly_frozen

GPU = torch.device("cuda", 0)
#: The marks of a module of tests that need a GPU.
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=f"torch {torch.__version__} finds no GPU of CUDA"),
]


def pictures() -> nn.Module:
    """Convolutions in two dimensions, with pooling and batch norm."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(8, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 4)),
    )


class Recurrent(nn.Module):
    """Words in buckets, an LSTM over them, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.memory, self.last = nn.Embedding(8, 6), nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (state, _) = self.memory(self.words(_words(x)))
        found: torch.Tensor = self.last(state[-1])
        return found


class Attentive(nn.Module):
    """Words, a transformer's layer without dropout, and a dense layer; the words so many times."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self._times = times
        self.words = nn.Embedding(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layer(self.words(_words(x).repeat(1, self._times))).mean(1))
        return found


def partly_frozen_recurrent() -> nn.Module:
    """Its LSTM reads its input with weights that are not trained, and do not travel."""
    module = Recurrent()
    module.memory.weight_ih_l0.requires_grad_(False)
    return module


def pooled() -> nn.Module:
    """torch has no deterministic gradient for how it pools."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 8, 3, padding=1), nn.AdaptiveAvgPool2d((2, 3)), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(48, 4)),
    )


def _words(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).long().clamp(-4, 3) + 4


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "norm-and-dropout": norm_and_dropout,
    "convolutions": convolutions,
    "pictures": pictures,
    "tied": Tied,
    "partly-frozen": partly_frozen,
    "partly-unused": PartlyUnused,
    "bfloat16": Mixed,
    "recurrent": Recurrent,
    "recurrent-partly-frozen": partly_frozen_recurrent,
    "attentive": Attentive,
    "attentive-long": lambda: Attentive(50),
}
#: They draw random numbers while they train. A GPU draws others than the CPU.
DRAWING = {"norm-and-dropout"}


class OfKind(Task):
    """Any of the models, with data for it."""

    num_classes, num_clients = 4, 3

    def __init__(self, kind: str, extractor: str = "") -> None:
        self._kind, self.extractor = kind, extractor

    def model(self) -> nn.Module:
        return (MODELS | {"pooled": pooled})[self._kind]()

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        x, y = rng.standard_normal((23, 10)).astype(np.float32), rng.integers(0, 4, 23)
        return ClientData(Split(x[:18], y[:18]), Split(x[18:], y[18:]))


def hosted(kind: str, device: torch.device = GPU, task: Task | None = None) -> Clients:
    """A node's clients on a device, prepared as a node does it."""
    prepare(device)
    torch.manual_seed(0)
    return Clients(task or OfKind(kind), None, device=device)


def values(weights: Any) -> dict[str, np.ndarray]:
    """Tensors of a model by name, in float64."""
    return {name: array.astype(np.float64) for name, array in weights.arrays.items()}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The Euclidean distance between two models."""
    return float(np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in one)))
