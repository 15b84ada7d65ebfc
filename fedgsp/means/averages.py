"""The streaming mean of models. It needs memory for one model in float64, whatever the number of models.

The float operations and their order are fixed, so that an independent implementation gives the same bits. For each
element of a float tensor, in float64: acc = n_1 * w_1, then acc = acc + n_k * w_k for k = 2, 3, ... in the order in
which models are folded, then acc / sum n_k, then one cast to the dtype of the tensor. The plain mean has n_k = 1. An
integer tensor (such as the batch counter of a normalisation layer) is copied from the first model.
"""

from __future__ import annotations

import abc
import math
import mmap
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import TensorSpec
from fedgsp.tensors.dtypes import DTYPES, is_float
from fedgsp.tensors.memory import new_pages
from fedgsp.tensors.spill import walk
from fedgsp.tensors.weights import Weights, padded_bytes, total_bytes

#: Changes the mean of a tensor before the mean is rounded: a flat float64 array, in place.
Adjust = Callable[[TensorSpec, NDArray[np.float64]], None]

#: Elements: a block of a model and its product fit into the processor's cache.
BLOCK = 1 << 15


class Average(abc.ABC):
    """Combines many models into one: `Mean`, `fedgsp.means.ida.Ida`, or a class of `fedgsp.means.robust`."""

    #: The tensors of the first model; none before.
    _tensors: tuple[TensorSpec, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether no model was folded yet."""
        return not self._tensors

    @abc.abstractmethod
    def fold(self, weights: Weights, samples: float = 1) -> None:
        """Add a model that was trained on `samples`.

        Raises ValueError if names, shapes or dtypes of its tensors differ from those of the first model.
        """

    @abc.abstractmethod
    def result(self) -> Weights:
        """The combined model. The average cannot be used afterwards. ValueError if no model was folded."""

    def _check_folded(self) -> None:
        if self.empty:
            raise ValueError("no model was folded, so there is no mean")


class OfKept(Average):
    """An average that keeps the folded models until the result, large models in files. They must not change."""

    def __init__(self) -> None:
        self._models: list[Weights] = []

    def fold(self, weights: Weights, samples: float = 1) -> None:
        """Add a model, as in the base class."""
        check_alike(self._tensors, weights)
        self._models.append(weights.at_rest())
        self._tensors = weights.tensors

    def result(self) -> Weights:
        """The combined model, as in the base class. The folded models are released."""
        self._check_folded()
        models, self._models = self._models, []
        return models[0] if len(models) == 1 else self._combined(models)

    @abc.abstractmethod
    def _combined(self, models: Sequence[Weights]) -> Weights:
        """The average of at least two models."""


class Mean(Average):
    """Mean of models: plain, or `weighted` by the number of samples behind each model.

    The first model is kept without a copy, and must not change. Sums are made when the second model comes.
    """

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self._total = 0.0
        self._first: Weights | None = None  # until there are sums
        self._sums: _Sums | None = None
        self._over = False

    def fold(self, weights: Weights, samples: float = 1) -> None:
        """Add a model, as in the base class."""
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
        """The mean model. It takes over the memory of the sums, so the mean cannot be used afterwards.

        Raises ValueError if no model was folded.
        """
        self._check_folded()
        self._over = True
        narrow = all(spec.dtype != "float64" for spec in self._tensors)
        if self._first is not None and adjust is None and narrow:
            return self._first  # n * w / n equals w after rounding to fewer bits
        return self._make_sums().rounded(self._total, adjust)

    def _make_sums(self) -> _Sums:
        if self._sums is None:
            assert self._first is not None
            self._sums, self._first = _Sums(self._first, self._total), None
        return self._sums


class _Sums:
    """Sums in float64. The result is written into the same memory, behind the place that is read."""

    def __init__(self, first: Weights, weight: float) -> None:
        self._tensors = first.tensors
        self._kept = {s.name: first.arrays[s.name].copy() for s in first.tensors if not is_float(DTYPES[s.dtype])}
        self._size = total_bytes(first.tensors)
        # The sums of a tensor must not begin before the place of the tensor in the result.
        places = np.cumsum([0, *(max(padded_bytes(s), 8 * math.prod(s.shape)) for s in first.tensors)]).tolist()
        self._memory = new_pages(max(places[-1], 1))
        self._sums = {
            spec.name: np.frombuffer(self._memory, np.float64, math.prod(spec.shape), place)
            for spec, place in zip(first.tensors, places, strict=False)
            if spec.name not in self._kept
        }
        self._scratch = np.empty(BLOCK)
        for name, sums in self._sums.items():
            for block, product in self._products(sums, first.arrays[name], weight):
                block[...] = product

    def add(self, weights: Weights, weight: float) -> None:
        for name, sums in self._sums.items():
            for block, product in self._products(sums, weights.arrays[name], weight):
                block += product

    def rounded(self, total: float, adjust: Adjust | None) -> Weights:
        """The sums divided by `total`, adjusted, and cast to the dtypes of the model."""
        mean = Weights(self._tensors, np.frombuffer(self._memory, np.uint8, self._size))
        for spec in self._tensors:
            if spec.name in self._kept:
                mean.arrays[spec.name][...] = self._kept[spec.name]
                continue
            sums, target = self._sums[spec.name], mean.arrays[spec.name].reshape(-1)
            if adjust is not None:
                sums /= total
                adjust(spec, sums)
            for start in range(0, len(sums), BLOCK):
                block = self._scratch[: len(sums) - start]
                block[...] = sums[start : start + BLOCK]
                if adjust is None:
                    block /= total
                target[start : start + BLOCK] = block
        mean.clear_padding()
        behind = -(-self._size // mmap.PAGESIZE) * mmap.PAGESIZE
        if behind < len(self._memory) and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, behind)
        return mean

    def _products(
        self, sums: NDArray[np.float64], tensor: NDArray[np.generic], weight: float
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Pairs of arrays: a block of a tensor's sums, and `weight` times the same block of the tensor."""
        done = 0
        for piece in walk(tensor.reshape(-1)):
            for start in range(0, len(piece), BLOCK):
                values = piece[start : start + BLOCK]
                product = self._scratch[: len(values)]
                product[...] = values
                product *= weight
                yield sums[done : done + len(values)], product
                done += len(values)


def check_weight(weight: float) -> None:
    """Raise ValueError unless `weight`, a number of samples or its replacement, is finite and above 0."""
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"a model cannot weigh {weight:g} samples")


def check_alike(first: tuple[TensorSpec, ...], weights: Weights) -> None:
    """Raise ValueError if names, shapes or dtypes differ from those of the first model, if there was one."""
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
