"""Adagrad, Adam and Yogi of a server, as written down: whole arrays in float64, no blocks, nothing in place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from tests.support.reference import State, cast, weighted_mean


def parameters_of(module: nn.Module) -> set[str]:
    """The names of what is trained; all else of the state are buffers."""
    return {name for name, _ in module.named_parameters()}


@dataclass
class PlainOptimiser:
    """Called once a round, with the global model and the groups' results, which count alike."""

    rule: str
    parameters: Collection[str]
    eta: float
    tau: float = 1e-3
    b1: float = 0.9
    b2: float = 0.99
    m: State = field(default_factory=dict)
    v: State = field(default_factory=dict)

    def __call__(self, model: State, results: list[State]) -> State:
        moved = weighted_mean(results, [1] * len(results))
        for name in self.parameters:
            w = model[name].astype(np.float64)
            total = np.zeros(w.shape)
            for result in results:
                total = total + result[name].astype(np.float64)
            d = total / len(results) - w
            self.m[name] = self.b1 * self.m.get(name, np.zeros(w.shape)) + (1 - self.b1) * d
            self.v[name] = self.next_v(self.v.get(name, np.full(w.shape, self.tau**2)), d)
            step = self.eta * self.m[name] / (np.sqrt(self.v[name]) + self.tau)
            moved[name] = cast(w + step, model[name].dtype)
        return moved

    def next_v(self, v: np.ndarray, d: np.ndarray) -> np.ndarray:
        match self.rule:
            case "fedadagrad":
                return v + d * d
            case "fedadam":
                return self.b2 * v + (1 - self.b2) * (d * d)
            case "fedyogi":
                return v - (1 - self.b2) * (d * d) * np.sign(v - d * d)
        raise AssertionError(self.rule)
