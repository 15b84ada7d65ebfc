"""FedMMD and FedFusion as they are written down, with two modules: one that trains, and a frozen copy beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable

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
