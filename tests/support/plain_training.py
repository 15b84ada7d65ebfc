"""The training algorithms as written down: losses with their proximal terms, copies of models, torch.optim.SGD."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedgsp.messages import TrainingSettings
from tests.support.local_work import extractor_of
from tests.support.plain_streams import Objective, frozen_copy, fusion_objective, mmd_objective

Data = tuple[torch.Tensor, torch.Tensor]
Options = Mapping[str, Any]


class Plain(NamedTuple):
    model: nn.Module
    personal: nn.Module | None
    loss: float
    steps: float


def train(
    module: nn.Module, personal: nn.Module, data: Data, how: TrainingSettings, options: Options, seed: int
) -> Plain:
    """Changes both modules; those that keep no personal model leave that alone."""
    rng = np.random.default_rng(seed)
    match how.algorithm:
        case "sgd" | "own-head" | "finetune":
            return Plain(module, None, *_near(module, data, how, rng, None, 0.0))
        case "fedprox":
            return Plain(module, None, *_near(module, data, how, rng, copy.deepcopy(module), options["mu"]))
        case "fedmmd":
            objective = mmd_objective(
                module, frozen_copy(module), options["lambda"], options["of"], nn.functional.cross_entropy
            )
            return Plain(module, None, *_minimised(module, objective, data, how, rng))
        case "fedfusion":
            names = ("fusion_weight", "fusion_bias", "fusion_gamma")
            fusion = nn.ParameterDict({n: p for n, p in module.named_parameters(recurse=False) if n in names})
            objective = fusion_objective(
                module, frozen_copy(module), extractor_of(module), fusion, nn.functional.cross_entropy
            )
            return Plain(module, None, *_minimised(module, objective, data, how, rng))
        case "ditto":
            received = copy.deepcopy(module)
            result = _near(module, data, how, rng, None, 0.0)
            _near(personal, data, how, rng, received, options["lambda"])
            return Plain(module, personal, *result)
        case "per-fedavg":
            return _per_fedavg(module, data, how, rng)
        case "pfedme":
            return _pfedme(module, data, how, options, rng)
    raise AssertionError(how.algorithm)


def adapt(module: nn.Module, data: Data, how: TrainingSettings, steps: int, seed: int) -> None:
    """That many steps of SGD, over as many epochs as it takes."""
    rng = np.random.default_rng(seed)
    module.train()
    while steps:
        for x, y in _epoch(data, how.batch_size, rng):
            if steps:
                _step(module, nn.functional.cross_entropy(module(x), y), how.learning_rate)
                steps -= 1


def _epoch(data: Data, size: int, rng: np.random.Generator) -> Iterator[Data]:
    order = rng.permutation(len(data[0]))
    for begin in range(0, len(order), size):
        rows = order[begin : begin + size]
        yield data[0][rows], data[1][rows]


def _batches(data: Data, how: TrainingSettings, rng: np.random.Generator) -> Iterator[Data]:
    for _ in range(how.local_epochs):
        yield from _epoch(data, how.batch_size, rng)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _set(module: nn.Module, values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(_trained(module), values, strict=True):
            parameter.copy_(value)


def _values(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in _trained(module)]


def _step(module: nn.Module, loss: torch.Tensor, rate: float) -> None:
    optimiser = torch.optim.SGD(_trained(module), lr=rate)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()


def _distance(module: nn.Module, anchors: list[torch.Tensor]) -> torch.Tensor:
    pairs = zip(_trained(module), anchors, strict=True)
    return torch.stack([(parameter - anchor).square().sum() for parameter, anchor in pairs]).sum()


def _near(
    module: nn.Module,
    data: Data,
    how: TrainingSettings,
    rng: np.random.Generator,
    anchor: nn.Module | None,
    strength: float,
) -> tuple[float, float]:
    """Mean loss, and FedNova's normalising sum for proximal solvers."""
    anchors = _values(anchor or module)
    losses: list[float] = []
    batches = 0
    module.train()
    for x, y in _batches(data, how, rng):
        loss = nn.functional.cross_entropy(module(x), y)
        losses += [loss.item()] * len(x)
        _step(module, loss + strength / 2 * _distance(module, anchors), how.learning_rate)
        batches += 1
    left = 1 - how.learning_rate * strength
    return sum(losses) / len(losses), sum(left**earlier for earlier in range(batches))


def _minimised(
    module: nn.Module, objective: Objective, data: Data, how: TrainingSettings, rng: np.random.Generator
) -> tuple[float, float]:
    losses: list[float] = []
    batches = 0
    module.train()
    for x, y in _batches(data, how, rng):
        loss, whole = objective(x, y)
        losses += [loss.item()] * len(x)
        _step(module, whole, how.learning_rate)
        batches += 1
    return sum(losses) / len(losses), batches


def _per_fedavg(module: nn.Module, data: Data, how: TrainingSettings, rng: np.random.Generator) -> Plain:
    losses: list[float] = []
    batches = 0
    module.train()
    for x, y in _batches(data, how, rng):
        if len(x) < 4:
            continue
        before, half = _values(module), len(x) // 2
        first = nn.functional.cross_entropy(module(x[:half]), y[:half])
        _step(module, first, how.learning_rate)
        second = nn.functional.cross_entropy(module(x[half:]), y[half:])
        gradients = torch.autograd.grad(second, _trained(module), allow_unused=True)
        steps = [0 if gradient is None else how.learning_rate * gradient for gradient in gradients]
        _set(module, [value - step for value, step in zip(before, steps, strict=True)])
        losses += [first.item()] * half + [second.item()] * (len(x) - half)
        batches += 1
    return Plain(module, None, sum(losses) / len(losses), batches)


def _pfedme(module: nn.Module, data: Data, how: TrainingSettings, options: Options, rng: np.random.Generator) -> Plain:
    shared = _values(module)
    losses: list[float] = []
    batches = 0
    module.train()
    for x, y in _batches(data, how, rng):
        _set(module, shared)
        for _ in range(int(options["personal_steps"])):
            loss = nn.functional.cross_entropy(module(x), y)
            losses += [loss.item()] * len(x)
            _step(module, loss + options["lambda"] / 2 * _distance(module, shared), options["personal_rate"])
        rate = how.learning_rate * options["lambda"]
        shared = [w - rate * (w - theta) for w, theta in zip(shared, _values(module), strict=True)]
        batches += 1
    personal = copy.deepcopy(module)
    _set(module, shared)
    return Plain(module, personal, sum(losses) / len(losses), batches)
