"""FedMMD and FedFusion as they are written down, with two modules: one that trains, and a frozen copy beside it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

#: From a batch to its loss, and to what training minimises.
Objective = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
VARIANCES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6]


def frozen_copy(module: nn.Module) -> nn.Module:
    """It shares nothing with the module."""
    return copy.deepcopy(module).requires_grad_(False).eval()


def mmd_objective(
    module: nn.Module,
    received: nn.Module,
    strength: float,
    of: str,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Objective:
    """The loss, and the loss with FedMMD's part."""

    def objective(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (outputs, features), (their_outputs, their_features) = _seen(module, x), _seen(received, x)
        z, z_g = (outputs, their_outputs) if of == "logits" else (features, their_features)
        plain = loss(outputs, y)
        apart = _mmd(z_g.flatten(1), z.flatten(1))
        return plain, plain + strength * torch.maximum(apart, torch.tensor(1e-4, dtype=apart.dtype))

    return objective


def fusion_objective(
    module: nn.Module,
    received: nn.Module,
    layer: str,
    fusion: nn.ParameterDict,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Objective:
    """The loss on features fused with those of the received model; twice, as nothing is added to it."""

    def objective(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        theirs: list[torch.Tensor] = []
        with replaced(received, layer, lambda features: theirs.append(features)), torch.no_grad():
            received(x)
        with replaced(module, layer, lambda features: fused(fusion, features, theirs[0])):
            found = loss(module(x), y)
        return found, found

    return objective


@contextlib.contextmanager
def replaced(module: nn.Module, layer: str, change: Callable[[torch.Tensor], Any]) -> Iterator[None]:
    """Inside the context, the output of a layer is what `change` makes of it, or remains if that returns None."""
    place = module.get_submodule(layer)
    others = dict(place._forward_hooks)
    place._forward_hooks.clear()
    place.register_forward_hook(lambda _layer, _inputs, output: change(output))
    try:
        yield
    finally:
        place._forward_hooks.clear()
        place._forward_hooks.update(others)


def fused(fusion: nn.ParameterDict, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """By a gamma, or by a convolution."""
    if "fusion_gamma" in fusion:
        gamma = fusion["fusion_gamma"].reshape([-1] + [1] * (ours.dim() - 2))
        return ours + gamma * (theirs - ours)
    both = torch.cat((ours, theirs), 1).movedim(1, -1)  # as the system does, to which channels are the last axis
    return nn.functional.linear(both, fusion["fusion_weight"], fusion["fusion_bias"]).movedim(-1, 1)


def new_fusion(operator: str, channels: int) -> dict[str, torch.Tensor]:
    """Its first values; a convolution draws them as torch does."""
    if operator != "conv":
        return {"fusion_gamma": torch.zeros(channels if operator == "multi" else 1)}
    made = nn.Conv2d(2 * channels, channels, 1)
    assert made.bias is not None
    return {"fusion_weight": made.weight.detach()[:, :, 0, 0], "fusion_bias": made.bias.detach()}


def _seen(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model returns, and what its last dense layer is given."""
    given = []
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    hook = last.register_forward_hook(lambda _layer, inputs, _output: given.append(inputs[0]))
    outputs = module(x)
    hook.remove()
    return outputs, given[0] if given else outputs


def _mmd(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _kernels(u, u).mean() + _kernels(v, v).mean() - 2 * _kernels(u, v).mean()


def _kernels(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    # All kernels at once, because one after the other their gradients would be added, and rounded, in another order.
    factors = torch.tensor([-0.5 / s for s in VARIANCES], dtype=u.dtype).view(-1, 1, 1)
    return (factors * apart).exp().sum(dim=0)
