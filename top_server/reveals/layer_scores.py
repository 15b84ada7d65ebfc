"""Which layer distinguishes the clients best: HCCT-E, eq. 19, in three readings of its "Var / Mean".

All readings need the same four sums over the columns of a tensor, so the updates are read only once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import TaskError
from fedgsp.messages import TensorSpec
from fedgsp.tensors.updates import trainable

_EXACT = "give --profile-option similarity=exact"
#: Gives the columns of a slice of the updates, as consecutive blocks of shape (N, any).
Blocks = Callable[[slice], Iterable[NDArray[np.floating]]]


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the d columns of one tensor. m_j and v_j are the mean and variance of column j over the clients."""

    columns: int = 0
    variance: float = 0.0  #: sum v_j
    mean: float = 0.0  #: sum m_j
    size: float = 0.0  #: sum |m_j|
    square: float = 0.0  #: sum m_j^2

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.columns + other.columns,
            self.variance + other.variance,
            self.mean + other.mean,
            self.size + other.size,
            self.square + other.square,
        )

    @classmethod
    def of(cls, block: NDArray[np.floating]) -> Moments:
        """The moments of a block of columns of N updates, shape (N, d)."""
        wide = block.astype(np.float64)
        mean = wide.mean(axis=0)
        return cls(
            wide.shape[1], float(wide.var(axis=0).sum()), float(mean.sum()), float(abs(mean).sum()), float(mean @ mean)
        )


def _robust(parts: list[Moments]) -> float:
    layer = sum(parts, Moments())
    return layer.variance / (layer.square + 1e-12)


def _release(parts: list[Moments]) -> float:
    """As in the authors' code: for each tensor, the variance of all its entries divided by their mean; then the sum.

    The variance of all entries is the mean variance within columns plus the variance of the columns' means.
    """
    return sum(
        _ratio(part.variance + part.square - part.mean**2 / part.columns, part.mean) for part in parts if part.columns
    )


def _magnitude(parts: list[Moments]) -> float:
    layer = sum(parts, Moments())
    return _ratio(layer.variance, layer.size)


#: Reading of eq. 19 -> the score of a layer from the moments of its tensors.
READINGS: dict[str, Callable[[list[Moments]], float]] = {
    "robust": _robust,
    "release": _release,
    "magnitude": _magnitude,
}


def layers(tensors: Iterable[TensorSpec]) -> dict[str, slice]:
    """Name -> slice of a flat update, for every dense or convolutional layer; the slice has its weight and its bias.

    Raises TaskError if another tensor stands between weight and bias, or if there is no such layer.
    """
    found = {}
    for prefix, parts in _parts(tensors).items():
        ordered = sorted(parts, key=lambda part: part.start)
        if any(left.stop != right.start for left, right in itertools.pairwise(ordered)):
            raise TaskError(
                f"weight and bias of layer {prefix!r} are not next to each other in the model",
                f"register one right after the other, or {_EXACT}",
            )
        found[prefix] = slice(ordered[0].start, ordered[-1].stop)
    if not found:
        raise TaskError("the model has no trainable dense or convolutional layer", _EXACT)
    return found


def scores(reading: str, tensors: Iterable[TensorSpec], blocks: Blocks) -> dict[str, float]:
    """The score of each layer, in the order of the model, by one of READINGS."""
    return {
        prefix: READINGS[reading]([sum(map(Moments.of, blocks(part)), Moments()) for part in parts])
        for prefix, parts in _parts(tensors).items()
    }


def choose(scores: Mapping[str, float]) -> str:
    """The layer with the largest signed score, the first one in a tie; raises ValueError if there is no layer."""
    return max(scores, key=scores.__getitem__)


def _parts(tensors: Iterable[TensorSpec]) -> dict[str, list[slice]]:
    """Layer -> slices of its weight and, if it has one, its bias."""
    where: dict[str, slice] = {}
    parts: dict[str, list[slice]] = {}
    position = 0
    for spec in trainable(tensors):
        where[spec.name] = slice(position, position + math.prod(spec.shape))
        position = where[spec.name].stop
        prefix, _, kind = spec.name.rpartition(".")
        if kind == "weight" and len(spec.shape) >= 2:
            parts[prefix] = [where[spec.name]]
    for prefix, found in parts.items():
        bias = where.get(f"{prefix}.bias" if prefix else "bias")
        if bias is not None:
            found.append(bias)
    return parts


def _ratio(top: float, bottom: float) -> float:
    if top == 0:
        return 0.0
    return top / bottom if bottom else math.inf
