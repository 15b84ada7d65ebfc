"""Local SGD against torch.optim.SGD and against the toy problem."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.toy_task import SAMPLES, TARGETS, Toy
from torch import nn

from fedgsp import Task
from fedgsp.messages import TrainingSettings
from fedgsp_node.training import sgd
from fedgsp_node.training.control import Control, StoppedError


class _CrossEntropy(Task):
    num_classes = 4
    num_clients = 1

    def model(self) -> nn.Module:
        raise AssertionError("never asked for")

    def data(self, client: int) -> object:  # type: ignore[override]
        raise AssertionError("never asked for")


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))


def _norm_and_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))


def _convolutions() -> nn.Module:
    layers = [nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4)]
    return nn.Sequential(*layers)


class _Tied(nn.Module):
    """One matrix, used twice, in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 4)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(torch.relu(self.first(x))) + x @ self.first.weight)


def _partly_frozen() -> nn.Module:
    module = _mlp()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    return module


class _PartlyUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(10, 4), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


torch.set_num_threads(1)
MODELS = [_mlp, _norm_and_dropout, _convolutions, _Tied, _partly_frozen, _PartlyUnused]


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 10, generator=generator), torch.randint(0, 4, (count,), generator=generator)


def settings(epochs: int = 1, batch_size: int = 5, learning_rate: float = 0.05) -> TrainingSettings:
    return TrainingSettings("sgd", epochs, batch_size, learning_rate, seed=0)


def by_torch(module: nn.Module, x: torch.Tensor, y: torch.Tensor, how: TrainingSettings, seed: int) -> float:
    """The same by torch's own optimiser; the mean loss over the samples seen."""
    module.train()
    rng, losses = np.random.default_rng(seed), []
    optimiser = torch.optim.SGD((p for p in module.parameters() if p.requires_grad), lr=how.learning_rate)
    for _ in range(how.local_epochs):
        order = rng.permutation(len(x))
        for begin in range(0, len(x), how.batch_size):
            rows = torch.from_numpy(order[begin : begin + how.batch_size])
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            losses += [loss.item()] * len(rows)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(("count", "how"), [(20, settings()), (23, settings(3, 4)), (7, settings(2, 100, 0.3))])
def test_small_models_get_the_bits_of_torchs_own_optimiser(
    make: Callable[[], nn.Module], count: int, how: TrainingSettings
) -> None:
    torch.manual_seed(1)
    ours = make()
    theirs = copy.deepcopy(ours)
    x, y = data(count)
    torch.manual_seed(2)
    loss = sgd.train(ours, _CrossEntropy(), x, y, how, np.random.default_rng(3), Control())
    torch.manual_seed(2)
    expected = by_torch(theirs, x, y, how, 3)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
    assert loss == pytest.approx(expected, rel=1e-6)


def toy(client: int, epochs: int, batch_size: int = 10, learning_rate: float = 0.1) -> tuple[float, float, int]:
    """w after training from 1, mean loss, batches."""
    task, control = Toy(), Control()
    module = task.model()
    part = task.data(client).train
    x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
    how = settings(epochs, batch_size, learning_rate)
    loss = sgd.train(module, task, x, y, how, np.random.default_rng(0), control)
    return module.state_dict()["w"].item(), loss, control.mark


@pytest.mark.parametrize(("client", "expected"), [(0, 0.81), (1, 1.57)])
def test_two_steps_on_the_toy_problem_give_the_published_values(client: int, expected: float) -> None:
    assert toy(client, epochs=2)[0] == pytest.approx(expected, abs=1e-12)


def test_local_epochs_and_batches_are_counted_and_the_short_last_batch_is_kept() -> None:
    assert SAMPLES[1] == 3
    for epochs, batch_size, batches in [(1, 3, 1), (1, 2, 2), (4, 2, 8), (2, 1, 6)]:
        w, _, mark = toy(1, epochs, batch_size)
        assert mark == batches
        assert w == pytest.approx(TARGETS[1] + (1 - TARGETS[1]) * 0.9**batches)


def test_the_loss_is_the_mean_over_the_samples_seen() -> None:
    # two batches, of 2 and of 1 sample: 0.5 * 3^2 and 0.5 * 2.7^2
    assert toy(1, 1, batch_size=2)[1] == pytest.approx((2 * 4.5 + 1 * 3.645) / 3)


def test_every_epoch_has_an_order_of_its_own() -> None:
    seen: list[list[float]] = []

    class Watching(Toy):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            seen.append(targets.tolist())
            return super().loss(outputs, targets)

    task = Watching()
    x, y = torch.zeros(50, 1, dtype=torch.float64), torch.arange(50, dtype=torch.float64)
    sgd.train(task.model(), task, x, y, settings(2, 50), np.random.default_rng(0), Control())
    first, second = seen
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(range(50))}) == 3


def test_it_trains_in_training_mode_whatever_the_mode_was() -> None:
    module = _norm_and_dropout().eval()
    x, y = data(10)
    sgd.train(module, _CrossEntropy(), x, y, settings(), np.random.default_rng(0), Control())
    assert int(module.state_dict()["1.num_batches_tracked"]) == 2


def test_it_stops_at_the_end_of_the_batch_when_told_to() -> None:
    control = Control(stop=threading.Event())
    control.stop.set()
    module = _mlp()
    before = module.state_dict()["0.weight"].clone()
    x, y = data(50)
    with pytest.raises(StoppedError):
        sgd.train(module, _CrossEntropy(), x, y, settings(), np.random.default_rng(0), control)
    assert control.mark == 1
    assert not torch.equal(module.state_dict()["0.weight"], before)


def test_no_gradients_are_left_on_the_parameters() -> None:
    module = _mlp()
    x, y = data(10)
    sgd.train(module, _CrossEntropy(), x, y, settings(), np.random.default_rng(0), Control())
    assert all(parameter.grad is None for parameter in module.parameters())
