"""The task digits with a pause in every step. The bits are the same, and there is time for faults."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from fedgsp_node.tasks.digits import Digits

#: What differs from the model of the digits: the first convolution is frozen, the last layer is in bfloat16, or both.
VARIANTS = ("plain", "frozen", "bfloat16", "both")


class _Narrow(nn.Linear):
    """A dense layer in bfloat16 behind layers in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16()).float()


class SlowDigits(Digits):
    local_options = ("pause",)  # some sites are slower than others

    def __init__(self, clients: int, pause: float = 0.0, variant: str = "plain") -> None:
        super().__init__(clients)
        self._pause = pause
        self._variant = variant

    def model(self) -> nn.Module:
        module: Any = super().model()
        if self._variant in ("frozen", "both"):
            module[0].requires_grad_(False)
        if self._variant in ("bfloat16", "both"):
            module[-1] = _Narrow(module[-1].in_features, module[-1].out_features, dtype=torch.bfloat16)
        return module

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(self._pause)
        return super().loss(outputs, targets)
