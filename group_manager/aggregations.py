"""Aggregations of models that members trained in parallel from one start. Each is a class and a row of a table."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgsp import robust
from fedgsp.aggregation import Average, Mean, check_weight
from fedgsp.messages import TensorSpec
from fedgsp.weights import Weights


class Aggregation(abc.ABC):
    """Takes models one by one, in the order of the members, and gives one model."""

    #: Whether the result depends on the start, which the manager then has to fetch.
    needs_start: ClassVar[bool] = False
    _mean: Average

    @property
    def empty(self) -> bool:
        """Whether nothing was folded."""
        return self._mean.empty

    @abc.abstractmethod
    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model with `weight` > 0, trained for `steps` local steps; ValueError if it cannot be added."""

    @abc.abstractmethod
    def result(self, start: Weights | None) -> Weights:
        """The group's model; the aggregation cannot be used afterwards. Raises ValueError if no model was folded."""


class WeightedMean(Aggregation):
    """The weighted mean of the models (FedAvg)."""

    def __init__(self) -> None:
        self._mean = Mean(weighted=True)

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model to the mean; `steps` has no influence."""
        self._mean.fold(weights, weight)

    def result(self, start: Weights | None) -> Weights:
        """The mean."""
        return self._mean.result()


class FedNova(Aggregation):
    """FedNova: w + tau_eff * sum p_k (w_k - w) / tau_k, with tau_eff = sum p_k tau_k.

    Each update is normalised by its number of local steps tau_k. The result lies on the line from the start w through
    the mean with weights p_k / tau_k, usually beyond that mean. Buffers, such as those of batch normalisation, get the
    mean itself: beyond it a variance could be negative.
    """

    needs_start = True
    _mean: Mean

    def __init__(self) -> None:
        self._mean = Mean(weighted=True)
        self._weight = self._weight_per_step = self._weighted_steps = 0.0

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model; `steps` > 0 is tau_k, the normalising sum of the local steps."""
        if not steps > 0:
            raise ValueError(f"it says that it took {steps} local steps")
        self._mean.fold(weights, weight / steps)
        self._weight += weight
        self._weight_per_step += weight / steps
        self._weighted_steps += weight * steps

    def result(self, start: Weights | None) -> Weights:
        """The normalised average, computed in float64 and rounded once."""
        if self.empty:
            raise ValueError("no model was folded")
        assert start is not None
        reach = self._weighted_steps * self._weight_per_step / self._weight**2

        def step(spec: TensorSpec, mean: NDArray[np.float64]) -> None:
            if spec.trainable:
                before: NDArray[Any] = start.arrays[spec.name].reshape(-1)
                mean -= before
                mean *= reach
                mean += before

        return self._mean.result(step)


class Median(Aggregation):
    """The median of every coordinate; all models count alike."""

    def __init__(self) -> None:
        self._mean = robust.Median()

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Keeps the model until the result."""
        check_weight(weight)
        self._mean.fold(weights)

    def result(self, start: Weights | None) -> Weights:
        """The median."""
        return self._mean.result()


class TrimmedMean(Median):
    """The mean of every coordinate without its extreme values."""

    def __init__(self, trim: float = robust.DEFAULT_TRIM) -> None:
        self._mean = robust.TrimmedMean(trim)


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": WeightedMean,
    "fednova": FedNova,
    "median": Median,
    "trimmed-mean": TrimmedMean,
}


def needs_start(name: str) -> bool:
    """Whether the aggregation that a request names compares models with their start."""
    made = AGGREGATIONS.get(name)
    return made is not None and made.needs_start


def named(name: str) -> Aggregation:
    """The aggregation that a request names; the mean if it names none. "trimmed-mean:0.2" sets the share to trim.

    Raises ValueError for an unknown name.
    """
    kind, colon, share = name.partition(":")
    if colon and kind == "trimmed-mean":
        return TrimmedMean(float(share))
    made = AGGREGATIONS.get(name or "mean")
    if made is None:
        raise ValueError(f"unknown aggregation {name!r}; known: {', '.join(AGGREGATIONS)}")
    return made()
