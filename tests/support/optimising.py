"""Optimisers stepped outside of any training, for tests of their state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from fedgsp.optimizers import OPTIMIZERS
from tests.support.local_work import samples


def made(name: str, given: Mapping[str, str], module: nn.Module) -> torch.optim.Optimizer:
    """The built-in optimiser of this name with these options, for all parameters of a module."""
    part = OPTIMIZERS[name]
    found: torch.optim.Optimizer = part.load()(list(module.parameters()), 0.01, part.read(dict(given)))
    return found


def names(module: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in module.named_parameters()}


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    """So many steps on the same 12 samples."""
    x, y = samples(12)
    for _ in range(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
