"""An optimiser whose steps have one size, and one that is none."""

from __future__ import annotations

from typing import Any

import torch

from .declared import SignsOptions


class Signs(torch.optim.Optimizer):
    """Moves each weight by the learning rate, against the sign of its gradient."""

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, dead: float) -> None:
        super().__init__(parameters, {"lr": lr, "dead": dead})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    large = parameter.grad.abs() > group["dead"]
                    parameter.add_(torch.where(large, parameter.grad.sign(), 0), alpha=-group["lr"])


def signs(parameters: list[torch.nn.Parameter], learning_rate: float, options: SignsOptions) -> torch.optim.Optimizer:
    """The optimiser of one training."""
    return Signs(parameters, learning_rate, options.dead)


def nothing(parameters: list[torch.nn.Parameter], learning_rate: float, options: object) -> None:
    """Not an optimiser."""
