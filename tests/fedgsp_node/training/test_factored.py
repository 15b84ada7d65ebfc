"""Factored gradients give what whole gradients give, to rounding."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.local_work import local_work
from torch import nn

from fedgsp import Task
from fedgsp.messages import TrainingSettings
from fedgsp_node.training import factored, sgd
from fedgsp_node.training.factored import factored_gradients

torch.set_num_threads(1)

#: A square layer of this width is large, here.
WIDE = 32


@pytest.fixture
def _large_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factored, "LARGE", WIDE * WIDE)


class _MeanSquare(Task):
    num_classes = 2
    num_clients = 1

    def model(self) -> nn.Module:
        raise AssertionError("never asked for")

    def data(self, client: int) -> object:  # type: ignore[override]
        raise AssertionError("never asked for")

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.flatten(1).mean(1) - targets).square().mean()


class _CrossEntropy(_MeanSquare):
    loss = Task.loss


class _Twice(nn.Module):
    """One large layer, twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class _Tied(nn.Module):
    """Two large layers with one weight, which a third operation uses, too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.tanh(self.one(x))) + nn.functional.linear(x, self.one.weight)


class _Frozen(nn.Module):
    """A frozen weight with a trained bias, then a trained weight with a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.one.weight.requires_grad_(False)
        self.other.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.tanh(self.one(x)))


class _Computed(nn.Module):
    """A large layer whose weight is computed from trained parameters."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.layer = nn.utils.weight_norm(nn.Linear(WIDE, WIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.Tanh(), nn.Linear(2 * WIDE, WIDE))


def _no_bias() -> nn.Module:
    return nn.Linear(WIDE, WIDE, bias=False)


def _unused() -> nn.Module:
    module = nn.Linear(WIDE, WIDE)
    module.add_module("unused", nn.Linear(WIDE, WIDE))
    return module


MODELS = [_two_layers, _no_bias, _unused, _Twice, _Tied, _Frozen, _Computed]


def both_ways(
    make: Callable[[], nn.Module], task: Task, x: torch.Tensor, y: torch.Tensor, steps: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """State after the same steps from the same weights, ours and torch's."""
    torch.manual_seed(0)
    ours = make()
    torch.manual_seed(0)
    theirs = make()
    settings = TrainingSettings("sgd", steps, len(x), 0.1, seed=0)
    sgd.train(local_work(ours, task, (x, y), settings, seed=0)[0])
    optimiser = torch.optim.SGD((p for p in theirs.parameters() if p.requires_grad), lr=0.1)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = torch.from_numpy(rng.permutation(len(x)))
        optimiser.zero_grad()
        task.loss(theirs(x[rows]), y[rows]).backward()
        optimiser.step()
    return ours.state_dict(), theirs.state_dict()


def assert_alike(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], rtol: float, atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=rtol, atol=atol), name


@pytest.mark.usefixtures("_large_is_small")
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("shape", [(4, WIDE), (3, 5, WIDE), (2, 2, 3, WIDE)])
def test_large_layers_get_torchs_weights_to_rounding(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(shape, dtype=torch.float64), torch.randn(shape[0], dtype=torch.float64)
    ours, theirs = both_ways(lambda: make().double(), _MeanSquare(), x, y, steps=3)
    assert_alike(ours, theirs, rtol=1e-10, atol=1e-14)
    torch.manual_seed(0)
    untrained = make().double().state_dict()
    assert any(not torch.allclose(ours[name], untrained[name]) for name in untrained)


@pytest.mark.usefixtures("_large_is_small")
def test_a_frozen_weight_keeps_its_bits() -> None:
    after, _ = both_ways(_Frozen, _MeanSquare(), torch.randn(4, WIDE), torch.randn(4), steps=2)
    torch.manual_seed(0)
    before = _Frozen().state_dict()
    assert {name for name in before if torch.equal(before[name], after[name])} == {"one.weight", "other.bias"}


def test_the_cnn_of_the_paper_gets_torchs_weights_to_rounding() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(3136, 2048), nn.ReLU(), nn.Linear(2048, 62)),
        )

    torch.manual_seed(1)
    images, labels = torch.randn(5, 1, 28, 28), torch.randint(0, 62, (5,))
    ours, theirs = both_ways(make, _CrossEntropy(), images, labels, steps=1)
    assert_alike(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.usefixtures("_large_is_small")
def test_only_large_trainable_layers_leave_factors() -> None:
    layers = [nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE - 1), nn.Linear(WIDE - 1, WIDE), nn.Linear(WIDE, WIDE)]
    layers[3].weight.requires_grad_(False)
    module = nn.Sequential(*layers)
    with factored_gradients(module) as factors:
        loss = module(torch.randn(6, WIDE)).sum()
        gradients = torch.autograd.grad(loss, [layer.weight for layer in layers[:3]], allow_unused=True)
        ((weight, grad, inputs),) = factors
    assert weight is layers[0].weight
    assert (grad.shape, inputs.shape) == ((6, WIDE), (6, WIDE))
    assert [gradient is None for gradient in gradients] == [True, False, False]


@pytest.mark.usefixtures("_large_is_small")
def test_a_layer_is_left_as_it_was_found_even_after_an_error() -> None:
    layer = nn.Linear(WIDE, WIDE)
    found = set(vars(layer))

    def fail() -> None:
        with factored_gradients(layer):
            assert set(vars(layer)) == found | {"forward"}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert set(vars(layer)) == found
    layer(torch.randn(2, WIDE)).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.usefixtures("_large_is_small")
def test_hooks_of_a_large_layer_still_run() -> None:
    layer, seen = nn.Linear(WIDE, WIDE), []
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    with factored_gradients(layer):
        layer(torch.randn(2, WIDE))
    assert seen == ["forward"]
