"""Means that a few wrong models cannot move far, coordinate by coordinate (Yin et al. 2018, definitions 1 and 2).

Each model counts once, whatever the samples behind it. All are kept until the result, large ones in files; beside
them there is one block of coordinates at a time.

Float operations: the values of a coordinate are sorted in their own dtype, so that the order of the models makes no
difference; the rest is in float64. Median: the middle value, or the sum of the two middle ones, halved. Trimmed mean:
the sum of what is left, from the smallest on, divided by its number. Then 0.0 is added, which makes -0.0 0.0, and the
result is cast once. One model is its own mean. Integer tensors are those of the first model, as in `Mean`.
"""

from __future__ import annotations

import abc
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.aggregation import check_alike
from fedgsp.messages import TensorSpec
from fedgsp.spill import spilling_room, walk
from fedgsp.weights import DTYPES, Weights, total_bytes

#: Share of the models that a trimmed mean leaves out at either end.
DEFAULT_TRIM = 0.1

_SCRATCH_BYTES = 4 << 20  # what is looked at of all models together
_LEAST_BLOCK = 1024  # elements of one model: below that calls cost more than sorting


class _OfSorted(abc.ABC):
    """Keeps what is folded; the models must not change."""

    def __init__(self) -> None:
        self._models: list[Weights] = []
        self._tensors: tuple[TensorSpec, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing was folded."""
        return not self._tensors

    def fold(self, weights: Weights, samples: float = 1) -> None:
        """Adds a model; ValueError unless names, shapes and dtypes are those of the first."""
        check_alike(self._tensors, weights)
        self._models.append(weights.at_rest())
        self._tensors = weights.tensors

    def result(self) -> Weights:
        """The mean, which ends here and holds on to models no more. ValueError when nothing was folded."""
        if self.empty:
            raise ValueError("no model was folded, so there is no mean")
        models, self._models = self._models, []
        if len(models) == 1:
            return models[0]
        mean = Weights(self._tensors, spilling_room(total_bytes(self._tensors)))
        for spec in self._tensors:
            if DTYPES[spec.dtype].kind == "f":
                self._reduce([model.arrays[spec.name].reshape(-1) for model in models], _flat(mean, spec))
            else:
                mean.arrays[spec.name][...] = models[0].arrays[spec.name]
        mean.clear_padding()
        return mean

    def _reduce(self, tensors: list[NDArray[np.generic]], target: NDArray[np.generic]) -> None:
        block = max(_LEAST_BLOCK, _SCRATCH_BYTES // (len(tensors) * target.itemsize))
        scratch = np.empty((min(block, len(target)), len(tensors)), target.dtype)
        walks = [walk(flat, block * target.itemsize) for flat in (target, *tensors)]
        for made, *pieces in zip(*walks, strict=True):
            values = scratch[: len(made)]
            for column, piece in enumerate(pieces):
                values[:, column] = piece
            values.sort(axis=1)
            made[...] = self._mean(values) + 0.0

    @abc.abstractmethod
    def _mean(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        """Of each row of values, shape (elements, models), sorted: the mean, shape (elements,)."""


class Median(_OfSorted):
    """Stays among the right values while less than half of the models are wrong."""

    def _mean(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        models = values.shape[1]
        return _mean_of_columns(values[:, (models - 1) // 2 : models // 2 + 1])


class TrimmedMean(_OfSorted):
    """Leaves out the floor(`trim` * models) smallest values of every coordinate, and as many of the largest.

    `trim` is at least 0 and below 0.5, else ValueError. With fewer than 1 / `trim` models nothing is left out.
    """

    def __init__(self, trim: float = DEFAULT_TRIM) -> None:
        super().__init__()
        if not 0 <= trim < 0.5:
            raise ValueError(f"a mean cannot be trimmed by {trim:g} at either end")
        self._trim = Fraction(repr(float(trim)))  # as it is written: in floats, 0.29 * 100 is below 29

    def _mean(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        models = values.shape[1]
        cut = math.floor(self._trim * models)
        return _mean_of_columns(values[:, cut : models - cut])


def _mean_of_columns(values: NDArray[Any]) -> NDArray[np.float64]:
    total = values[:, 0].astype(np.float64)
    for column in range(1, values.shape[1]):
        total += values[:, column]
    total /= values.shape[1]
    return total


def _flat(weights: Weights, spec: TensorSpec) -> NDArray[np.generic]:
    return weights.arrays[spec.name].reshape(-1)
