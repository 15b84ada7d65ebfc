"""The streaming mean of models: memory for one model in float64, however many are folded in.

Float operations, in this order, so that an independent implementation gives the same bits. Per element of a floating
tensor, all in float64: acc = n_1 * w_1, then acc = acc + n_k * w_k for k = 2, 3, ... as folded, then acc / sum n_k,
then one cast to the dtype of the tensor. The plain mean has n_k = 1. Integer and boolean tensors (such as the batch
counter of a normalisation layer) are those of the first model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]

_Like = tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype

_BLOCK = 1 << 15  # elements; a block and its product stay in the cache


class Mean:
    """Mean of named tensors; `weighted` by the samples behind each model, or plain."""

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self._total = 0.0
        self._like: dict[str, _Like] = {}
        self._sums: dict[str, NDArray[np.float64]] = {}  # flat
        self._kept: dict[str, NDArray[Any]] = {}
        self._scratch = np.empty(_BLOCK)

    def fold(self, tensors: Tensors, samples: float = 1) -> None:
        """Add one model, trained on `samples`; ValueError unless names, shapes and dtypes are those of the first."""
        weight = float(samples) if self._weighted else 1.0
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"a model cannot weigh {samples} samples")
        like = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if not self._like:
            self._start(tensors, like)
        elif like != self._like:
            raise ValueError(f"the models differ: {_difference(self._like, like)}")
        for name, acc in self._sums.items():
            self._add(acc, tensors[name].reshape(-1), weight)
        self._total += weight

    def result(self, *, exact: bool = False) -> dict[str, NDArray[Any]]:
        """The mean so far, in the order of the first model; ValueError when nothing was folded.

        Exact: floating tensors stay float64, for whoever goes on computing with them.
        """
        if not self._like:
            raise ValueError("no model was folded, so there is no mean")
        return {name: self._divided(name, exact) if name in self._sums else self._kept[name] for name in self._like}

    def _start(self, tensors: Tensors, like: dict[str, _Like]) -> None:
        if not tensors:
            raise ValueError("a model without tensors has no mean")
        for name, (_, dtype) in like.items():
            if dtype.kind not in "fiub":
                raise ValueError(f"tensor {name!r} has dtype {dtype}, of which there is no mean")
        self._like = like
        self._kept = {name: tensor.copy() for name, tensor in tensors.items() if tensor.dtype.kind != "f"}
        # Minus zero is the neutral element of addition: plus zero would lose the sign of a sum of minus zeros.
        self._sums = {name: np.full(tensor.size, -0.0) for name, tensor in tensors.items() if name not in self._kept}

    def _add(self, acc: NDArray[np.float64], values: NDArray[Any], weight: float) -> None:
        for start in range(0, len(acc), _BLOCK):
            block = acc[start : start + _BLOCK]
            product = self._scratch[: len(block)]
            np.multiply(values[start : start + _BLOCK], weight, out=product, dtype=np.float64)
            np.add(block, product, out=block)

    def _divided(self, name: str, exact: bool) -> NDArray[Any]:
        shape, dtype = self._like[name]
        mean = np.empty(shape, np.float64 if exact else dtype)
        np.divide(self._sums[name].reshape(shape), self._total, out=mean, dtype=np.float64, casting="same_kind")
        return mean


def _difference(first: Mapping[str, _Like], other: Mapping[str, _Like]) -> str:
    name = next(name for name in [*first, *other] if first.get(name) != other.get(name))
    return f"tensor {name!r} is {_described(first.get(name))} in the first, {_described(other.get(name))} here"


def _described(like: _Like | None) -> str:
    return "absent" if like is None else f"{like[1]}{list(like[0])}"
