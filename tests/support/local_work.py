"""One client's local work outside a node: small models of every kind, data, and what a training algorithm is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from fedgsp import Task
from fedgsp.messages import TrainingSettings
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import TRAININGS
from fedgsp_node.model.torch_weights import bind, weights_of
from fedgsp_node.rehearsal import features_of
from fedgsp_node.samples import Samples
from fedgsp_node.training.base import Batch, LocalWork
from fedgsp_node.training.control import Control
from fedgsp_node.training.steps import batch_of


class CrossEntropy(Task):
    num_classes = 4
    num_clients = 1

    def model(self) -> nn.Module:
        raise AssertionError("never asked for")

    def data(self, client: int) -> object:  # type: ignore[override]
        raise AssertionError("never asked for")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))


def norm_and_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    layers = [nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4)]
    return nn.Sequential(*layers)


def attention() -> nn.Module:
    encoder = nn.TransformerEncoderLayer(10, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 10)), encoder, nn.Flatten(), nn.Linear(10, 4))


class Tied(nn.Module):
    """One matrix, used twice, in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 4)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(torch.relu(self.first(x))) + x @ self.first.weight)


def partly_frozen() -> nn.Module:
    module = mlp()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    return module


class PartlyUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(10, 4), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Mixed(nn.Module):
    """A layer in bfloat16 before one in float32, and a buffer in bfloat16 that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 16, dtype=torch.bfloat16), nn.Linear(16, 4)
        self.middle: torch.Tensor
        self.register_buffer("middle", torch.zeros(16, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.first(x.to(self.first.weight.dtype)))
        if self.training:
            self.middle.lerp_(features.detach().mean(0), 0.5)
        found: torch.Tensor = self.last((features - self.middle).to(self.last.weight.dtype))
        return found


MODELS: list[Callable[[], nn.Module]] = [
    *[mlp, norm_and_dropout, convolutions, Tied, partly_frozen, PartlyUnused, Mixed],
]

#: Of a training, as `--precision` names them; "" is that of the weights.
PRECISIONS = ("", "bfloat16", "float16")


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For any of the models."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 10, generator=generator), torch.randint(0, 4, (count,), generator=generator)


def settings(
    epochs: int = 1,
    batch_size: int = 5,
    learning_rate: float = 0.05,
    algorithm: str = "sgd",
    options: Mapping[str, float] = MappingProxyType({}),
) -> TrainingSettings:
    given = {name: str(value) for name, value in options.items()}
    return TrainingSettings(algorithm, epochs, batch_size, learning_rate, seed=0, options=given)


def extractor_of(module: nn.Module) -> str:
    """The first layer that learns."""
    return next(name for name, layer in module.named_modules() if name and any(True for _ in layer.parameters()))


def local_work(
    module: nn.Module,
    task: Task,
    data: tuple[torch.Tensor, torch.Tensor],
    how: TrainingSettings,
    seed: int = 3,
    control: Control | None = None,
    personal: Weights | None = None,
) -> tuple[LocalWork, Weights]:
    """What a node hands to an algorithm, and the weights that the module is bound to; `seed` orders the batches."""
    options, rng = TRAININGS[how.algorithm].read(how.options), np.random.default_rng(seed)
    extend, added = TRAININGS[how.algorithm].load().extend, None
    if extend:
        features = features_of(module, extractor_of(module), data[0][:1])
        added = extend(module, features, options, weights_of(module).tensors)
    received = weights_of(module)
    trained = received.copy()
    bind(module, trained)
    work = LocalWork(module, task, Samples(*data), how, options, rng, control or Control(), received, personal, added)
    return work, trained


def whole_batch(work: LocalWork) -> Batch:
    """All samples of the work as one batch."""
    return batch_of(work, torch.arange(len(work.samples)))
