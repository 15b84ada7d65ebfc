"""The streaming mean of models: memory for one model in float64, however many are folded in.

Float operations, in this order, so that an independent implementation gives the same bits. Per element of a floating
tensor, all in float64: acc = n_1 * w_1, then acc = acc + n_k * w_k for k = 2, 3, ... as folded, then acc / sum n_k,
then one cast to the dtype of the tensor. The plain mean has n_k = 1. Integer tensors (such as the batch counter of a
normalisation layer) are those of the first model.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedgsp.memory import new_pages
from fedgsp.messages import TensorSpec
from fedgsp.spill import walk
from fedgsp.weights import DTYPES, Weights, padded_bytes, total_bytes

#: Changes the exact mean of a tensor, in float64, flat and in place, before it is rounded.
Adjust = Callable[[TensorSpec, NDArray[np.float64]], None]

_BLOCK = 1 << 15  # elements; a block and its product stay in the cache


class Average(Protocol):
    """Makes one model of many: `Mean`, or one of `fedgsp.robust`."""

    @property
    def empty(self) -> bool:
        """Whether nothing was folded."""

    def fold(self, weights: Weights, samples: float = 1) -> None:
        """Adds a model, trained on `samples`; ValueError if it does not fit the first."""

    def result(self) -> Weights:
        """The model made, with which the average ends; ValueError when nothing was folded."""


class Mean:
    """Mean of models; `weighted` by the samples behind each, or plain.

    The first model is kept as it is, and must not change: sums are made when a second one comes.
    """

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self._total = 0.0
        self._tensors: tuple[TensorSpec, ...] = ()
        self._first: Weights | None = None  # until there are sums
        self._sums: _Sums | None = None
        self._over = False

    @property
    def empty(self) -> bool:
        """Whether nothing was folded."""
        return not self._tensors

    def fold(self, weights: Weights, samples: float = 1) -> None:
        """Adds a model, trained on `samples`; ValueError unless names, shapes and dtypes are those of the first."""
        assert not self._over
        weight = float(samples) if self._weighted else 1.0
        check_weight(weight)
        check_alike(self._tensors, weights)
        if self.empty:
            self._first, self._tensors = weights, weights.tensors
        else:
            self._make_sums().add(weights, weight)
        self._total += weight

    def result(self, adjust: Adjust | None = None) -> Weights:
        """The mean, which ends here: its memory becomes the result's. ValueError when nothing was folded."""
        if self.empty:
            raise ValueError("no model was folded, so there is no mean")
        self._over = True
        narrow = all(DTYPES[spec.dtype].kind != "f" or DTYPES[spec.dtype].itemsize < 8 for spec in self._tensors)
        if self._first is not None and adjust is None and narrow:
            return self._first  # n * w / n is w again once it is rounded to fewer bits
        return self._make_sums().rounded(self._total, adjust)

    def _make_sums(self) -> _Sums:
        if self._sums is None:
            assert self._first is not None
            self._sums, self._first = _Sums(self._first, self._total), None
        return self._sums


class _Sums:
    """Sums in float64, in memory where the result later overwrites what was read of them."""

    def __init__(self, first: Weights, weight: float) -> None:
        self._tensors = first.tensors
        self._kept = {s.name: first.arrays[s.name].copy() for s in first.tensors if DTYPES[s.dtype].kind != "f"}
        self._size = total_bytes(first.tensors)
        # A tensor's sums begin no earlier than the tensor itself will.
        places = np.cumsum([0, *(max(padded_bytes(s), 8 * math.prod(s.shape)) for s in first.tensors)]).tolist()
        self._memory = new_pages(max(places[-1], 1))
        self._sums = {
            spec.name: np.frombuffer(self._memory, np.float64, math.prod(spec.shape), place)
            for spec, place in zip(first.tensors, places, strict=False)
            if spec.name not in self._kept
        }
        self._scratch = np.empty(_BLOCK)
        for name, sums in self._sums.items():
            for block, product in self._products(sums, first.arrays[name], weight):
                block[...] = product

    def add(self, weights: Weights, weight: float) -> None:
        """Adds weight times a model."""
        for name, sums in self._sums.items():
            for block, product in self._products(sums, weights.arrays[name], weight):
                block += product

    def rounded(self, total: float, adjust: Adjust | None) -> Weights:
        """The sums divided, adjusted, and cast."""
        mean = Weights(self._tensors, np.frombuffer(self._memory, np.uint8, self._size))
        for spec in self._tensors:
            if spec.name in self._kept:
                mean.arrays[spec.name][...] = self._kept[spec.name]
                continue
            sums, target = self._sums[spec.name], mean.arrays[spec.name].reshape(-1)
            if adjust is not None:
                sums /= total
                adjust(spec, sums)
            for start in range(0, len(sums), _BLOCK):
                block = self._scratch[: len(sums) - start]
                block[...] = sums[start : start + _BLOCK]
                if adjust is None:
                    block /= total
                target[start : start + _BLOCK] = block
        mean.clear_padding()
        behind = -(-self._size // mmap.PAGESIZE) * mmap.PAGESIZE
        if behind < len(self._memory) and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, behind)
        return mean

    def _products(
        self, sums: NDArray[np.float64], tensor: NDArray[np.generic], weight: float
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Blocks of a tensor's sums, and weight times what the tensor has there."""
        done = 0
        for piece in walk(tensor.reshape(-1)):
            for start in range(0, len(piece), _BLOCK):
                values = piece[start : start + _BLOCK]
                product = self._scratch[: len(values)]
                product[...] = values
                product *= weight
                yield sums[done : done + len(values)], product
                done += len(values)


def check_weight(weight: float) -> None:
    """Raises ValueError for a number of samples, or what stands for it, that no model may count."""
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"a model cannot weigh {weight:g} samples")


def check_alike(first: tuple[TensorSpec, ...], weights: Weights) -> None:
    """Raises ValueError unless names, shapes and dtypes are those of the first model, if there was one."""
    if not weights.tensors:
        raise ValueError("a model without tensors has no mean")
    if first and _layout(weights.tensors) != _layout(first):
        raise ValueError(f"the models differ: {_difference(first, weights.tensors)}")


def _layout(tensors: tuple[TensorSpec, ...]) -> list[tuple[str, tuple[int, ...], str]]:
    return [(spec.name, spec.shape, spec.dtype) for spec in tensors]


def _difference(first: tuple[TensorSpec, ...], other: tuple[TensorSpec, ...]) -> str:
    ours, theirs = ({spec.name: f"{spec.dtype}{list(spec.shape)}" for spec in tensors} for tensors in (first, other))
    name = next((name for name in [*ours, *theirs] if ours.get(name) != theirs.get(name)), None)
    if name is None:
        return "their tensors stand in another order"
    return f"tensor {name!r} is {ours.get(name, 'absent')} in the first, {theirs.get(name, 'absent')} here"
