"""The cost of training on one sample, for the modelled computing time (FedGSP's N_calc, section 1.7)."""

from __future__ import annotations

import torch
from torch import nn

#: A multiply-add is 2 operations; the backward pass costs about twice the forward pass.
FLOP_PER_MULTIPLY_ADD = 6


def training_flop(module: nn.Module, x: torch.Tensor) -> int:
    """Floating-point operations of training on one sample of `x`, shape (n, ...), in dense and convolution layers."""
    multiply_adds = 0

    def count(layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal multiply_adds
        assert isinstance(layer, _COUNTED)
        multiply_adds += output.numel() * layer.weight[0].numel()  # each output is a product with one row or kernel

    hooks = [layer.register_forward_hook(count) for layer in module.modules() if isinstance(layer, _COUNTED)]
    try:
        module.eval()
        with torch.inference_mode():
            module(x[:1].clone())
    finally:
        for hook in hooks:
            hook.remove()
    return FLOP_PER_MULTIPLY_ADD * multiply_adds


_COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
