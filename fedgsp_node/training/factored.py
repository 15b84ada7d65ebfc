"""Gradients of large dense layers as two thin factors.

A batch of b samples gives a dense layer a gradient of rank b: G'X with G of shape (b, out) and X of shape (b, in).
Adding that product to the weights in place spares writing and reading a gradient as large as the layer, which at
small batches takes longer than the arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

#: Layers below this many weights fit the cache, and keep the plain path: bit for bit what torch.optim.SGD does.
LARGE = 1 << 18


def large(parameter: torch.Tensor) -> bool:
    """Whether a parameter takes the path of large ones."""
    return parameter.numel() >= LARGE


class Factors:
    """What large layers leave in place of gradients in the backward passes that begin here, and in no others."""

    def __init__(self) -> None:
        #: (weight, G, X), which the caller applies and clears.
        self.kept: list[tuple[nn.Parameter, torch.Tensor, torch.Tensor]] = []
        self._under_way: int | None = None

    def backward(self, loss: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
        """Leaves gradients in `parameters`, or factors here."""

        def begin(_: torch.Tensor) -> None:
            self._under_way = torch._C._current_graph_task_id()

        # Without a graph there is nothing to hook on: torch says so in its own words.
        hook = loss.register_hook(begin) if loss.requires_grad else contextlib.nullcontext()
        try:
            with hook:
                torch.autograd.backward(loss, inputs=parameters)
        finally:
            self._under_way = None

    def wanted(self) -> bool:
        """Whether the pass that is running is one of ours.

        A model or loss may take gradients of its own, which need them whole: before our pass (saliency, gradient
        penalty) and also within it (the adjoint of an equation, say). Each pass has an id.
        """
        return self._under_way is not None and self._under_way == torch._C._current_graph_task_id()


class _Linear(torch.autograd.Function):
    """Dense layer whose backward pass leaves (weight, G, X) in `factors` in place of a gradient, if wanted there."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None, factors: Factors
    ) -> torch.Tensor:
        # Through save_for_backward, so that a change in place before the backward pass is refused as torch does.
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        ctx.weight, ctx.factors, ctx.has_bias = weight, factors, bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grads[0]
        # All that is returned is differentiable, for backward passes with create_graph.
        flat, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_x = grad @ weight if weight is not None else None
        grad_bias = flat.sum(0) if ctx.has_bias else None
        # Whoever hooked on to the weight wants to see the gradient, or to change it.
        hooked = ctx.weight._backward_hooks or ctx.weight._post_accumulate_grad_hooks
        if hooked or not ctx.factors.wanted():
            return grad_x, flat.t() @ inputs, grad_bias, None
        ctx.factors.kept.append((ctx.weight, flat, inputs))
        return grad_x, None, grad_bias, None


@contextlib.contextmanager
def factored_gradients(module: nn.Module) -> Iterator[Factors]:
    """Within, large `nn.Linear` layers may put their gradients' factors here; the caller applies them."""
    factors = Factors()
    layers = [
        layer
        for layer in module.modules()
        if type(layer) is nn.Linear
        and "forward" not in vars(layer)  # somebody else's
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
    own = layer.weight

    def forward(x: torch.Tensor) -> torch.Tensor:
        if layer.weight is not own or _unusual(own.device):
            return nn.Linear.forward(layer, x)
        result: torch.Tensor = _Linear.apply(x, own, layer.bias, factors)  # type: ignore[no-untyped-call]
        return result

    return forward


def _unusual(device: torch.device) -> bool:
    """Whether something is at work that a function of our own would not work with."""
    return (
        torch.is_autocast_enabled(device.type)  # computes in other dtypes
        or torch._C._are_functorch_transforms_active()  # torch.func
        or forward_ad._current_level >= 0
    )
