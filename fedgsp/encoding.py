"""How weights travel: as they lie in memory or, if all their float32 values are bfloat16, those in two bytes each.

A bfloat16 is the upper half of a float32. Weights are rounded where they are made, so nothing is lost on the way:
whoever has them, wherever from, has the same bits, and their digest is of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import TensorSpec
from fedgsp.spill import walk
from fedgsp.weights import Weights, stretches

#: What a header calls its stream; "" is the buffer itself.
BFLOAT16 = "bfloat16"
ENCODINGS = ("", BFLOAT16)
#: The largest finite bfloat16.
LARGEST = (2 - 2.0**-7) * 2.0**127

_BLOCK = 1 << 15  # values; a block and what is computed from it stay in the cache


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring tensors that travel alike: their place in the buffer; halved: the upper 2 of every 4 bytes."""

    start: int
    end: int
    halved: bool


def _runs(tensors: tuple[TensorSpec, ...], bfloat16: bool) -> list[_Run]:
    found = stretches(tensors, lambda spec: bfloat16 and spec.dtype == "float32")
    return [_Run(start, end, halved) for halved, start, end in found]


def wire_bytes(tensors: tuple[TensorSpec, ...], bfloat16: bool) -> int:
    """Bytes of a model's stream."""
    return sum((run.end - run.start) // (2 if run.halved else 1) for run in _runs(tensors, bfloat16))


def rounded(weights: Weights) -> Weights:
    """The weights with every float32 rounded to the nearest bfloat16, ties to even; finite values stay finite.

    Rounds in place, unless a digest of theirs is known: somebody else may hold them then.
    """
    if weights.bfloat16:
        return weights
    if weights.known_digest is not None:
        weights = weights.copy()
    for run in _runs(weights.tensors, True):
        if run.halved:
            _round(weights.buffer[run.start : run.end].view(np.float32))
    weights.bfloat16 = True
    return weights


def _round(values: NDArray[np.float32]) -> None:
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        bits = block.view(np.uint32)
        with np.errstate(invalid="ignore"):
            usual = block.max() <= LARGEST and block.min() >= -LARGEST
        if not usual:
            np.copyto(block, np.nan, where=np.isnan(block))  # the sum below makes a number of other bits of NaN
            np.clip(block, -LARGEST, LARGEST, out=block, where=np.isfinite(block))
        half = bits >> 16
        half &= 1
        half += 0x7FFF
        bits += half
        bits &= 0xFFFF0000


def encoded(weights: Weights, chunk_bytes: int) -> Iterator[tuple[memoryview, memoryview]]:
    """The pieces of a model's buffer, and the chunks of its stream that they become, of `chunk_bytes` at most."""
    for run in _runs(weights.tensors, weights.bfloat16):
        for piece in walk(weights.buffer[run.start : run.end], max(4, chunk_bytes & ~3)):  # whole values
            if run.halved:
                yield piece.data, np.ascontiguousarray(piece.view(np.uint16)[1::2]).view(np.uint8).data
            else:
                yield piece.data, piece.data


class Decoder:
    """Fills a buffer with a stream of `wire_bytes`, chunk by chunk."""

    def __init__(self, buffer: NDArray[np.uint8], tensors: tuple[TensorSpec, ...], bfloat16: bool) -> None:
        self._buffer = buffer
        self._runs = deque(_runs(tensors, bfloat16))
        #: Bytes of the buffer that are there.
        self.filled = 0

    def put(self, chunk: memoryview) -> NDArray[np.uint8]:
        """Takes in a chunk, and returns what it became; ValueError if it ends within a value."""
        begin = self.filled
        while chunk:
            run = self._runs[0]
            if run.halved:
                taken = chunk[: (run.end - self.filled) // 2]
                if len(taken) % 2:
                    raise ValueError("a chunk ends within a value")
                end = self.filled + 2 * len(taken)
                target = self._buffer[self.filled : end].view(np.uint32)
                np.left_shift(np.frombuffer(taken, np.uint16), 16, out=target, dtype=np.uint32)
            else:
                taken = chunk[: run.end - self.filled]
                end = self.filled + len(taken)
                self._buffer.data[self.filled : end] = taken
            self.filled = end
            chunk = chunk[len(taken) :]
            if end == run.end:
                self._runs.popleft()
        return self._buffer[begin : self.filled]
