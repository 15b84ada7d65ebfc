"""The mean of clipped updates, and an aggregation that fails."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.parts import NoOptions
from fedgsp.tensors.weights import Weights
from group_manager.aggregation_classes import Aggregation

from .declared import ClipOptions


class ClippedMean(Aggregation):
    """The start, and to it the mean of the updates, of which no coordinate is larger than `most`."""

    def __init__(self, options: ClipOptions) -> None:
        self._most = options.most
        self._mean = Mean(weighted=True)

    @property
    def empty(self) -> bool:
        """Whether nothing was folded."""
        return self._mean.empty

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model."""
        self._mean.fold(weights, weight)

    def result(self, start: Weights | None) -> Weights:
        """Clips the mean update."""
        assert start is not None

        def clip(spec: TensorSpec, mean: NDArray[np.float64]) -> None:
            before = start.arrays[spec.name].reshape(-1).astype(np.float64)
            np.clip(mean, before - self._most, before + self._most, out=mean)

        return self._mean.result(clip)


class FailingMean(ClippedMean):
    """Raises an exception when a model comes."""

    def __init__(self, options: NoOptions) -> None:
        super().__init__(ClipOptions())

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Raises ZeroDivisionError."""
        raise ZeroDivisionError("nothing can be folded here")
