"""Robust means, coordinate by coordinate: a few wrong models cannot move them far (Yin et al. 2018, defs. 1 and 2).

Each model counts once, whatever its number of samples. All models are kept until the result is computed, large models
in files. The computation needs one block of coordinates of all models at a time.

The float operations are fixed. The values of a coordinate are sorted in their own dtype, so that the order of the
models does not matter. The rest is in float64. Median: the middle value, or half the sum of the two middle values.
Trimmed mean: the sum of the remaining values, from the smallest on, divided by their number. Then 0.0 is added, which
turns -0.0 into 0.0, and the result is cast once. The mean of one model is that model. An integer tensor is copied from
the first model, as in `Mean`.
"""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.averages import OfKept
from fedgsp.settings.fields import setting
from fedgsp.tensors.dtypes import DTYPES, is_float
from fedgsp.tensors.spill import spilling_room, walk
from fedgsp.tensors.weights import Weights, total_bytes

_SCRATCH_BYTES = 4 << 20  # size of a block of coordinates of all models
_LEAST_BLOCK = 1024  # elements of one model: in smaller blocks, calls cost more than sorting


@dataclass(frozen=True, slots=True)
class TrimOptions:
    """Options of a trimmed mean."""

    trim: float = setting(0.1, "share of the models that is left out at either end", least=0, below=0.5)


class _OfSorted(OfKept):
    def _combined(self, models: Sequence[Weights]) -> Weights:
        mean = Weights(self._tensors, spilling_room(total_bytes(self._tensors)))
        for spec in self._tensors:
            if is_float(DTYPES[spec.dtype]):
                target, *tensors = (one.arrays[spec.name].reshape(-1) for one in (mean, *models))
                self._reduce(tensors, target)
            else:
                mean.arrays[spec.name][...] = models[0].arrays[spec.name]
        mean.clear_padding()
        return mean

    def _reduce(self, tensors: list[NDArray[np.generic]], target: NDArray[np.generic]) -> None:
        block = max(_LEAST_BLOCK, _SCRATCH_BYTES // (len(tensors) * target.itemsize))
        scratch = np.empty((min(block, len(target)), len(tensors)), target.dtype)
        walks = (walk(flat, block * target.itemsize) for flat in (target, *tensors))
        for made, *pieces in zip(*walks, strict=True):
            values = scratch[: len(made)]
            for column, piece in enumerate(pieces):
                values[:, column] = piece
            values.sort(axis=1)
            made[...] = self._mean(values) + 0.0

    @abc.abstractmethod
    def _mean(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        """The mean of each row: `values` of shape (elements, models), sorted in each row, to shape (elements,)."""


class Median(_OfSorted):
    """The median of each coordinate. It lies among correct values if fewer than half of the models are wrong."""

    def _mean(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        models = values.shape[1]
        return _mean_of_columns(values[:, (models - 1) // 2 : models // 2 + 1])


class TrimmedMean(_OfSorted):
    """The mean of each coordinate without its floor(`trim` * models) smallest values and as many largest values.

    `trim` is at least 0 and below 0.5, else ValueError. With fewer than 1 / `trim` models, no value is left out.
    """

    def __init__(self, trim: float) -> None:
        super().__init__()
        if not 0 <= trim < 0.5:
            raise ValueError(f"a mean cannot be trimmed by {trim:g} at either end")
        self._trim = Fraction(repr(float(trim)))  # the decimal number as written: in floats, 0.29 * 100 is below 29

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
