"""Inverse distance aggregation (IDA): models that are far from the mean of all models count less.

Y. Yeganeh and others, Inverse Distance Aggregation for Federated Learning with Non-IID Data, DART at MICCAI 2020
(arXiv 2008.07665), section "Method". With w_avg the plain mean of the models w_k, over the trainable parameters:

    d_k = || w_avg - w_k ||
    b_k = t_k / (d_k + 1e-12)
    w   = sum_k b_k w_k / sum_k b_k

t_k is 1, the samples behind the model, or 1 / A_k (INTRAC) with A_k its accuracy on the samples that it was trained
on. Buffers become the mean weighted by samples. The mean of one model is that model.

All of it is in float64, in the order in which models are folded, with one cast at the end. Distances are summed up by
blocks of a tensor. All models are kept until the result is computed, large models in files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.averages import BLOCK, Mean, OfKept, check_weight
from fedgsp.settings.fields import setting
from fedgsp.tensors.spill import walk
from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights

Floats = NDArray[np.float64]

INTRAC = "intrac"

_LEAST = 1e-12  # added to distances: a model may equal the mean

#: t_k, of the samples behind a model and of its training accuracy.
_FACTORS: Mapping[str, Callable[[float, float], float]] = {
    "plain": lambda samples, accuracy: 1.0,
    "samples": lambda samples, accuracy: samples,
    INTRAC: lambda samples, accuracy: 1 / accuracy,
}
#: What is summed up over the elements of a difference, and what becomes of the sum.
_NORMS: Mapping[str, tuple[Callable[[Floats], Floats], Callable[[float], float]]] = {
    "l1": (np.abs, float),
    "l2": (np.square, math.sqrt),
}


@dataclass(frozen=True, slots=True)
class IdaOptions:
    """Options of inverse distance aggregation."""

    times: str = setting(
        "plain",
        "what the inverse distance is multiplied by: nothing, the samples, or the inverse training accuracy (intrac)",
        choices=tuple(_FACTORS),
    )
    norm: str = setting("l1", "norm of the distances; none: all models are equally far", choices=(*_NORMS, "none"))


class Ida(OfKept):
    """The mean by inverse distance."""

    def __init__(self, options: IdaOptions) -> None:
        super().__init__()
        self._options = options
        self._samples: list[float] = []
        self._factors: list[float] = []

    def fold(self, weights: Weights, samples: float = 1, accuracy: float = 0.0) -> None:
        """Add a model that was trained on `samples`; `accuracy` is read only for INTRAC.

        Raises ValueError if the model does not fit the first model, if `samples` is not above 0, or if INTRAC has no
        accuracy above 0 and at most 1.
        """
        check_weight(samples)
        if self._options.times == INTRAC and not 0 < accuracy <= 1:
            raise ValueError(f"its training accuracy is {accuracy:g}, which is not above 0 and at most 1")
        super().fold(weights)
        self._samples.append(float(samples))
        self._factors.append(_FACTORS[self._options.times](float(samples), accuracy))

    def _combined(self, models: Sequence[Weights]) -> Weights:
        found = distances(models, self._options.norm)
        mean = _mean(models, [factor / (one + _LEAST) for factor, one in zip(self._factors, found, strict=True)])
        buffers = tuple(spec for spec in self._tensors if not spec.trainable)
        if buffers:
            for name, array in _mean([model.part(buffers) for model in models], self._samples).arrays.items():
                mean.arrays[name][...] = array
        return mean


def distances(models: Sequence[Weights], norm: str) -> list[float]:
    """The distance of each model from the plain mean of all models, over the trainable parameters."""
    totals = [0.0] * len(models)
    if norm == "none":
        return totals
    part, whole = _NORMS[norm]
    for spec in trainable(models[0].tensors):
        tensors: list[NDArray[Any]] = [model.arrays[spec.name].reshape(-1) for model in models]
        for pieces in zip(*(walk(one, BLOCK * one.itemsize) for one in tensors), strict=True):
            mean = pieces[0].astype(np.float64)
            for piece in pieces[1:]:
                mean += piece
            mean /= len(models)
            for index, piece in enumerate(pieces):
                totals[index] += float(part(mean - piece).sum())
    return [whole(total) for total in totals]


def _mean(models: Sequence[Weights], weights: Sequence[float]) -> Weights:
    mean = Mean(weighted=True)
    for model, weight in zip(models, weights, strict=True):
        mean.fold(model, weight)
    return mean.result()
