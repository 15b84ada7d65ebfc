"""The weighted mean of models that come at the same time, computed as far as all of them have come.

Neither the models nor their sums are in memory as a whole: of each model only the bytes that came and are not folded
yet, and of the sums one block. The result has the bits of `fedgsp.means.averages.Mean`: each element goes through the
same float operations in the same order.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.averages import BLOCK, check_weight
from fedgsp.messages import TensorSpec
from fedgsp.tensors.dtypes import DTYPES, is_float
from fedgsp.tensors.memory import new_pages
from fedgsp.tensors.spill import let_go, spilling_room
from fedgsp.tensors.weights import Weights, nbytes, places, total_bytes

#: Bytes of a huge page. Smaller parts of the models' memory are not given back.
_HUGE_PAGE = 2 << 20


class BlockMean:
    """The mean of at least one model, each with its weight.

    `rooms` has the memory for the bytes of each model, in the order in which models are folded: uint8 arrays of shape
    (size,), to be filled from the beginning. Bytes that were folded are gone.
    """

    def __init__(self, tensors: tuple[TensorSpec, ...], weights: Sequence[float]) -> None:
        """The models have these tensors. ValueError for a weight that is not above 0."""
        for weight in weights:
            check_weight(weight)
        self._weights = [float(weight) for weight in weights]
        self._total = sum(self._weights[1:], self._weights[0])
        #: Bytes of a model.
        self.size = total_bytes(tensors)
        #: Bytes of each model that were folded.
        self.folded = 0
        self._mean = Weights(tensors, spilling_room(self.size))
        self._ahead = deque(places(tensors))
        self._pages = [new_pages(max(self.size, 1)) for _ in weights]
        self.rooms = [np.frombuffer(pages, np.uint8, self.size) for pages in self._pages]
        self._given_back = 0
        self._sum, self._product = np.empty(BLOCK), np.empty(BLOCK)

    def fold_to(self, end: int) -> None:
        """Fold the bytes up to `end`, to which all rooms are filled. A value that is not there whole waits."""
        before = self.folded
        while self._ahead:
            spec, offset = self._ahead[0]
            dtype, stop = DTYPES[spec.dtype], offset + nbytes(spec)
            begin = max(self.folded, offset)
            whole = begin + max(0, min(end, stop) - begin) // dtype.itemsize * dtype.itemsize
            for start in range(begin, whole, BLOCK * dtype.itemsize):
                self._fold(dtype, start, min(start + BLOCK * dtype.itemsize, whole))
            self.folded = whole
            if whole < stop:
                break
            self._ahead.popleft()
            following = self._ahead[0][1] if self._ahead else self.size
            self._mean.buffer[stop:following] = 0  # padding
            self.folded = following
        let_go(self._mean.buffer[before : self.folded])
        self._give_back()

    def result(self) -> Weights:
        """The mean, once all bytes were folded."""
        assert self.folded == self.size
        return self._mean

    def _fold(self, dtype: np.dtype[np.generic], start: int, stop: int) -> None:
        target: NDArray[np.generic] = self._mean.buffer[start:stop].view(dtype)
        first, *others = (room[start:stop].view(dtype) for room in self.rooms)
        if not is_float(dtype):
            target[...] = first
            return
        total, product = self._sum[: len(target)], self._product[: len(target)]
        total[...] = first
        total *= self._weights[0]
        for weight, values in zip(self._weights[1:], others, strict=True):
            product[...] = values
            product *= weight
            total += product
        total /= self._total
        target[...] = total

    def _give_back(self) -> None:
        end = self.folded // _HUGE_PAGE * _HUGE_PAGE
        if end > self._given_back and hasattr(mmap, "MADV_DONTNEED"):
            for pages in self._pages:
                pages.madvise(mmap.MADV_DONTNEED, self._given_back, end - self._given_back)
            self._given_back = end
