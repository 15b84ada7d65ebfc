"""Gradients of large dense layers as two thin factors.

A batch of b samples gives a dense layer a gradient of rank b: G'X with G of shape (b, out) and X of shape (b, in).
Adding that product to the weights in place spares writing and reading a gradient as large as the layer, which at
small batches takes longer than the arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

#: Layers below this many weights fit the cache, and keep the plain path: bit for bit what torch.optim.SGD does.
LARGE = 1 << 18

Factors = list[tuple[nn.Parameter, torch.Tensor, torch.Tensor]]


def large(parameter: torch.Tensor) -> bool:
    """Whether a parameter takes the path of large ones."""
    return parameter.numel() >= LARGE


class _Linear(torch.autograd.Function):
    """Dense layer whose backward pass leaves (weight, G, X) in `factors` in place of a gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None, factors: Factors
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.factors, ctx.has_bias = weight, factors, bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,), grad = ctx.saved_tensors, grads[0]
        flat = grad.reshape(-1, grad.shape[-1])
        ctx.factors.append((ctx.weight, flat, x.reshape(-1, x.shape[-1])))
        grad_x = grad @ ctx.weight if ctx.needs_input_grad[0] else None
        return grad_x, None, flat.sum(0) if ctx.has_bias else None, None


@contextlib.contextmanager
def factored_gradients(module: nn.Module) -> Iterator[Factors]:
    """Within, large `nn.Linear` layers put their gradients' factors into the list; the caller applies them."""
    factors: Factors = []
    layers = [
        layer
        for layer in module.modules()
        if type(layer) is nn.Linear
        # a weight that is computed from others (weight_norm) needs a gradient to pass on
        and isinstance(layer.weight, nn.Parameter)
        and layer.weight.requires_grad
        and large(layer.weight)
    ]
    for layer in layers:
        layer.forward = _forward(layer, factors)  # type: ignore[method-assign]
    try:
        yield factors
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: nn.Linear, factors: Factors) -> Any:
    def forward(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Linear.apply(x, layer.weight, layer.bias, factors)  # type: ignore[no-untyped-call]
        return result

    return forward
