"""Factored gradients give what whole gradients give, to rounding."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from fedgsp import Task
from fedgsp.messages import TrainingSettings
from fedgsp_node.training import factored
from fedgsp_node.training.factored import factored_gradients
from fedgsp_node.training.steps import descend
from tests.support.local_work import local_work

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
    descend(local_work(ours, task, (x, y), settings, seed=0)[0])
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
        factors.backward(module(torch.randn(6, WIDE)).sum(), [layer.get_parameter("weight") for layer in layers[:3]])
        ((weight, grad, inputs),) = factors.kept
    assert weight is layers[0].weight
    assert (grad.shape, inputs.shape) == ((6, WIDE), (6, WIDE))
    assert [layer.weight.grad is None for layer in layers[:3]] == [True, False, False]


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


# --- models and losses that take gradients of their own, or have torch compute in another way


class _Inner(nn.Module):
    """Two large layers; `how` says what else is done with them. Gives its inputs, too, for losses to ask about."""

    def __init__(self, how: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.net, self.how = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE)), how

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        return self.how(self.net, x) if self.how else self.net(x), x, self.net[2].get_parameter("weight")


class _LossOf(_MeanSquare):
    def __init__(self, extra: Callable[..., torch.Tensor | None] | None = None) -> None:
        self._extra = extra

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        z, x, weight = outputs
        loss = super().loss(z, targets)
        extra = self._extra(z, x, weight) if self._extra else None
        return loss if extra is None else loss + extra


def _saliency(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    assert torch.autograd.grad(z.sum(), x, retain_graph=True)[0].any()


def _scaled_by_a_gradient(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return z.square().mean() * torch.autograd.grad(z.sum(), weight, retain_graph=True)[0].norm()


def _penalty_on_inputs(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(z.sum(), x, create_graph=True)[0].square().sum()


def _penalty_on_weights(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(z.square().sum(), weight, create_graph=True)[0].square().mean()


def _backward_in_the_loss(z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    z.square().mean().backward(retain_graph=True)


@pytest.mark.usefixtures("_large_is_small")
@pytest.mark.parametrize(
    "extra",
    [_saliency, _scaled_by_a_gradient, _penalty_on_inputs, _penalty_on_weights, _backward_in_the_loss],
)
def test_a_loss_that_takes_gradients_itself_gets_torchs_weights(extra: Callable[..., torch.Tensor | None]) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(4, WIDE, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    ours, theirs = both_ways(lambda: _Inner().double(), _LossOf(extra), x, y, steps=3)
    assert_alike(ours, theirs, rtol=1e-10, atol=1e-14)


class _Adjoint(torch.autograd.Function):
    """Runs a network without a graph, and takes its gradients within the backward pass."""

    @staticmethod
    def forward(ctx: Any, net: nn.Module, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.net, ctx.parameters = net, parameters
        ctx.save_for_backward(x)
        result: torch.Tensor = net(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.net(x), (x, *ctx.parameters), grads[0])


def _adjoint(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Adjoint.apply(net, x, *net.parameters())  # type: ignore[no-untyped-call]
    return result


def _checkpointed(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(net, x, use_reentrant=False)
    return result


def _func_grad(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net(x) + torch.func.grad(lambda inputs: net(inputs).square().sum())(x)
    return result


def _per_sample(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(net, randomness="different")(x)


def _forward_mode(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(x, torch.ones_like(x))))
        assert tangent is not None
        return value + tangent


def _other_weights(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    halves = {name: parameter / 2 for name, parameter in net.named_parameters()}
    result: torch.Tensor = torch.func.functional_call(net, halves, (x,))
    return result


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's forward mode uses it
@pytest.mark.usefixtures("_large_is_small")
@pytest.mark.parametrize("how", [_adjoint, _checkpointed, _func_grad, _per_sample, _forward_mode, _other_weights])
def test_a_model_that_has_torch_compute_in_another_way_gets_torchs_weights(
    how: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(4, WIDE, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    ours, theirs = both_ways(lambda: _Inner(how).double(), _LossOf(), x, y, steps=3)
    assert_alike(ours, theirs, rtol=1e-10, atol=1e-14)


def _lower_precision(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result: torch.Tensor = net(x).float()
    return result


@pytest.mark.usefixtures("_large_is_small")
def test_under_autocast_the_bits_are_torchs() -> None:
    torch.manual_seed(1)
    ours, theirs = both_ways(
        lambda: _Inner(_lower_precision), _LossOf(), torch.randn(4, WIDE), torch.randn(4), steps=2
    )
    assert_alike(ours, theirs, rtol=0, atol=0)


@pytest.mark.usefixtures("_large_is_small")
@pytest.mark.parametrize("kind", ["gradient", "accumulated"])
def test_hooks_of_a_large_weight_may_change_its_gradient(kind: str) -> None:
    def halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad /= 2

    def make() -> nn.Module:
        layer = nn.Linear(WIDE, WIDE).double()
        if kind == "gradient":
            layer.weight.register_hook(lambda gradient: gradient / 2)
        else:
            layer.weight.register_post_accumulate_grad_hook(halve)
        return layer

    torch.manual_seed(1)
    x, y = torch.randn(4, WIDE, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    ours, theirs = both_ways(make, _MeanSquare(), x, y, steps=2)
    assert_alike(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.usefixtures("_large_is_small")
def test_a_weight_that_changes_before_the_backward_pass_is_refused_as_torch_does() -> None:
    layer = nn.Linear(WIDE, WIDE)
    with factored_gradients(layer) as factors:
        loss = layer(torch.randn(2, WIDE, requires_grad=True)).sum()
        with torch.no_grad():
            layer.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            factors.backward(loss, list(layer.parameters()))


@pytest.mark.usefixtures("_large_is_small")
def test_a_layer_with_a_forward_of_its_own_keeps_it() -> None:
    layer = nn.Linear(WIDE, WIDE)
    own = layer.forward = lambda x: x  # type: ignore[method-assign,assignment]
    with factored_gradients(layer):
        assert layer.forward is own
    assert layer.forward is own


@pytest.mark.usefixtures("_large_is_small")
def test_a_copy_that_a_model_makes_of_its_layer_computes_with_its_own_weight() -> None:
    layer, x = nn.Linear(WIDE, WIDE), torch.randn(2, WIDE)
    with factored_gradients(layer):
        copied = copy.deepcopy(layer)
        nn.init.zeros_(copied.weight)
        assert torch.equal(copied(x), copied.bias.expand(2, WIDE))
