"""Gradients of large dense layers, kept as two thin factors.

For a batch of b samples, the gradient of a dense layer is a product of rank b: G'X, with G of shape (b, out) and X of
shape (b, in). The product is added to the weights in place. So no gradient of the layer's size is written and read,
which for small batches would take longer than the arithmetic.
"""

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import forward_ad

#: Layers with fewer weights fit into the cache and have plain gradients, with the same bits as torch.optim.SGD.
LARGE = 1 << 18


def large(parameter: torch.Tensor) -> bool:
    """Whether a parameter has at least `LARGE` elements."""
    return parameter.numel() >= LARGE


def still_trained(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those that have gradients: a model may freeze parameters as it computes."""
    return [parameter for parameter in parameters if parameter.requires_grad]


class Factors:
    """Collects the factors of large layers during backward passes that `backward` starts, and during no other pass."""

    def __init__(self) -> None:
        #: (weight, G, X) of each layer. The caller applies and clears them.
        self.kept: list[tuple[nn.Parameter, torch.Tensor, torch.Tensor]] = []
        self._under_way: int | None = None

    def backward(self, loss: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
        """Runs the backward pass of `loss`: stores gradients in `parameters`, or factors of large layers in `kept`."""

        def begin(_: torch.Tensor) -> None:
            self._under_way = torch._C._current_graph_task_id()

        # A loss without a graph cannot have a hook. The backward pass then raises torch's own error.
        hook = loss.register_hook(begin) if loss.requires_grad else contextlib.nullcontext()
        try:
            with hook:
                torch.autograd.backward(loss, inputs=still_trained(parameters))
        finally:
            self._under_way = None

    def wanted(self) -> bool:
        """Whether the running backward pass was started by `backward`.

        A model or a loss may run other backward passes, which need whole gradients: before this pass (saliency,
        gradient penalty) or within it (adjoint methods). They have other ids.
        """
        return self._under_way is not None and self._under_way == torch._C._current_graph_task_id()


class _Linear(torch.autograd.Function):
    """A dense layer. Its backward pass stores (weight, G, X) in `factors` instead of a gradient, if `wanted`."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None, factors: Factors
    ) -> torch.Tensor:
        # With save_for_backward, torch raises its usual error if a tensor changes in place before the backward pass.
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        ctx.weight, ctx.factors, ctx.has_bias = weight, factors, bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grads[0]
        # Everything returned is differentiable, as backward passes with create_graph need.
        flat, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_x = grad @ weight if weight is not None else None
        grad_bias = flat.sum(0) if ctx.has_bias else None
        # A hook on the weight reads or changes the whole gradient.
        hooked = ctx.weight._backward_hooks or ctx.weight._post_accumulate_grad_hooks
        if hooked or not ctx.factors.wanted():
            return grad_x, flat.t() @ inputs, grad_bias, None
        ctx.factors.kept.append((ctx.weight, flat, inputs))
        return grad_x, None, grad_bias, None


@contextlib.contextmanager
def factored_gradients(module: nn.Module) -> Iterator[Factors]:
    """Inside the context, large `nn.Linear` layers put factors into the yielded object. The caller applies them."""
    factors = Factors()
    layers = [
        layer
        for layer in module.modules()
        if type(layer) is nn.Linear
        and "forward" not in vars(layer)  # another library has replaced it
        # a weight computed from other tensors (weight_norm) needs a gradient for them
        and isinstance(layer.weight, nn.Parameter)
        and layer.weight.requires_grad
        and large(layer.weight)
    ]
    for layer in layers:
        # A method of the layer: a model may copy its layers as it computes, and the copy's method is of the copy.
        forward = _forward(cast(nn.Parameter, layer.weight), factors)
        layer.forward = types.MethodType(forward, layer)  # type: ignore[method-assign]
    try:
        yield factors
    finally:
        for layer in layers:
            del layer.forward


def _forward(own: nn.Parameter, factors: Factors) -> Any:
    def forward(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if layer.weight is not own or not own.requires_grad or _unusual(own.device):
            return nn.Linear.forward(layer, x)
        result: torch.Tensor = _Linear.apply(x, own, layer.bias, factors)  # type: ignore[no-untyped-call]
        return result

    return forward


def _unusual(device: torch.device) -> bool:
    """Whether a torch feature is active with which a custom autograd function does not work."""
    return (
        torch.is_autocast_enabled(device.type)  # it computes in other dtypes
        or torch._C._are_functorch_transforms_active()  # torch.func
        or forward_ad._current_level >= 0
    )
