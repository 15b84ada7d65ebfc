"""What becomes of the models that members trained in parallel from one start: one class each, one line below."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np

from fedgsp.aggregation import Mean
from fedgsp.weights import Weights


class Aggregation(abc.ABC):
    """Folds models one by one, in the order of the members."""

    #: Whether the result depends on the start, which then has to be here.
    needs_start: ClassVar[bool] = False

    def __init__(self) -> None:
        self._mean = Mean(weighted=True)
        self._like: Weights | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing was folded."""
        return self._like is None

    @abc.abstractmethod
    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model that counts `weight` > 0 and took `steps` local steps; ValueError if it cannot be added."""

    @abc.abstractmethod
    def result(self, start: Weights | None) -> Weights:
        """The group's model; ValueError when nothing was folded."""

    def _fold(self, weights: Weights, weight: float) -> None:
        self._mean.fold(weights.arrays, weight)
        self._like = weights


class WeightedMean(Aggregation):
    """FedAvg."""

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Counts by its weight, however long it trained."""
        self._fold(weights, weight)

    def result(self, start: Weights | None) -> Weights:
        """The mean."""
        mean = self._mean.result()
        assert self._like is not None
        return Weights.of(mean, self._like.tensors)


class FedNova(Aggregation):
    """w + tau_eff * sum p_k (w_k - w) / tau_k, with tau_eff = sum p_k tau_k: many local steps do not count more.

    That is a step from the start w towards the mean with weights p_k / tau_k, and beyond it. Buffers such as those of
    batch normalisation are that mean: beyond it a variance could be negative.
    """

    needs_start = True

    def __init__(self) -> None:
        super().__init__()
        self._weight = self._weight_per_step = self._weighted_steps = 0.0

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """`steps` is the normalising sum of the local steps."""
        if not steps > 0:
            raise ValueError(f"it says that it took {steps} local steps")
        self._fold(weights, weight / steps)
        self._weight += weight
        self._weight_per_step += weight / steps
        self._weighted_steps += weight * steps

    def result(self, start: Weights | None) -> Weights:
        """Computed in float64, and rounded once."""
        mean = self._mean.result(exact=True)
        assert start is not None
        assert self._like is not None
        reach = self._weighted_steps * self._weight_per_step / self._weight**2
        for spec in self._like.tensors:
            if spec.trainable and mean[spec.name].dtype.kind == "f":
                before = start.arrays[spec.name].astype(np.float64)
                mean[spec.name] = before + reach * (mean[spec.name] - before)
        return Weights.of(mean, self._like.tensors)


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": WeightedMean,
    "fednova": FedNova,
}
