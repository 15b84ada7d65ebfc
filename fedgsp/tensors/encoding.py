"""The bytes in which weights travel: the bytes in memory, or float32 values in two bytes each if all are bfloat16.

A bfloat16 is the upper half of a float32. Weights are rounded where they are made, so the transfer loses nothing:
every process that has a model has the same bits, and the digest is computed over these bits.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.spill import reserve, walk
from fedgsp.tensors.weights import RAW, Weights, WeightsError, require, stretches

#: Names of encodings in a header; "" stands for the buffer itself.
BFLOAT16 = "bfloat16"
ENCODINGS = ("", BFLOAT16)
#: The largest finite bfloat16.
LARGEST = (2 - 2.0**-7) * 2.0**127

_BLOCK = 1 << 15  # values: a block and its results fit into the processor's cache


def _runs(tensors: tuple[TensorSpec, ...], bfloat16: bool) -> Iterator[tuple[bool, int, int]]:
    """Neighbouring tensors with the same encoding: whether only the upper 2 of every 4 bytes travel, begin, end."""
    return stretches(tensors, lambda spec: bfloat16 and spec.dtype == "float32")


def wire_bytes(tensors: tuple[TensorSpec, ...], bfloat16: bool) -> int:
    """Number of bytes that a model takes in a stream."""
    return sum((end - start) // (2 if halved else 1) for halved, start, end in _runs(tensors, bfloat16))


def rounded(weights: Weights) -> Weights:
    """The weights with every float32 rounded to the nearest bfloat16, ties to even; finite values stay finite.

    The weights are rounded in place, unless their digest is known: then other code may hold them, and a copy is made.
    """
    if weights.bfloat16:
        return weights
    if weights.known_digest is not None:
        weights = weights.copy()
    for halved, start, end in _runs(weights.tensors, True):
        if halved:
            _round(weights.buffer[start:end].view(np.float32))
    weights.bfloat16 = True
    return weights


def _round(values: NDArray[np.float32]) -> None:
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        bits = block.view(np.uint32)
        with np.errstate(invalid="ignore"):
            usual = block.max() <= LARGEST and block.min() >= -LARGEST
        if not usual:
            np.copyto(block, np.nan, where=np.isnan(block))  # the sum below would turn some NaN into numbers
            np.clip(block, -LARGEST, LARGEST, out=block, where=np.isfinite(block))
        half = bits >> 16
        half &= 1
        half += 0x7FFF
        bits += half
        bits &= 0xFFFF0000


def encoded(weights: Weights, chunk_bytes: int) -> Iterator[memoryview]:
    """The chunks of a model's stream, each of at most `chunk_bytes`."""
    for halved, start, end in _runs(weights.tensors, weights.bfloat16):
        for piece in walk(weights.buffer[start:end], max(4, chunk_bytes & ~3)):  # whole values
            if halved:
                yield np.ascontiguousarray(piece.view(np.uint16)[1::2]).view(np.uint8).data
            else:
                yield piece.data


class Decoder:
    """Fills the buffer of a model from its stream, chunk by chunk."""

    def __init__(self, buffer: NDArray[np.uint8], tensors: tuple[TensorSpec, ...], bfloat16: bool) -> None:
        self._buffer = buffer
        self._runs = deque(_runs(tensors, bfloat16))
        #: Number of bytes of the buffer that are filled.
        self.filled = 0

    def put(self, chunk: memoryview) -> NDArray[np.uint8]:
        """Decode a chunk; returns the part of the buffer that it filled. ValueError if it ends within a value."""
        begin = self.filled
        while chunk:
            halved, _, run_end = self._runs[0]
            if halved:
                taken = chunk[: (run_end - self.filled) // 2]
                if len(taken) % 2:
                    raise ValueError("a chunk ends within a value")
                end = self.filled + 2 * len(taken)
                values = np.frombuffer(taken, np.uint16)
                np.left_shift(values, 16, out=self._buffer[self.filled : end].view(np.uint32), dtype=np.uint32)
            else:
                taken = chunk[: run_end - self.filled]
                end = self.filled + len(taken)
                self._buffer.data[self.filled : end] = taken
            self.filled = end
            chunk = chunk[len(taken) :]
            if end == run_end:
                self._runs.popleft()
        return self._buffer[begin : self.filled]


class Plain:
    """Fills weights from a stream that is not coded. It has the methods of `coding.Decoder`."""

    coding = RAW

    def __init__(self, what: str, weights: Weights) -> None:
        """`what` names the model in errors."""
        self._what, self._weights = what, weights
        self._decoder = Decoder(weights.buffer, weights.tensors, weights.bfloat16)
        self._came, self._size = 0, wire_bytes(weights.tensors, weights.bfloat16)

    @property
    def filled(self) -> int:
        """Number of bytes of the buffer that are filled."""
        return self._decoder.filled

    @property
    def so_far(self) -> str:
        """How many bytes came, as text."""
        return f"{self._came} of {self._size} bytes came"

    @property
    def complete(self) -> bool:
        """Whether the weights are full."""
        return self._came == self._size

    def put(self, chunk: memoryview) -> Iterator[NDArray[np.uint8]]:
        """Takes a chunk; yields the part of the buffer that it fills.

        Raises WeightsError for a chunk that such weights cannot have, and OSError if there is no disk for them.
        """
        end = self._came + len(chunk)
        require(
            end <= self._size,
            FailureCode.TOO_LONG,
            f"{self._what}: more than the announced {self._size} bytes came",
        )
        reserve(self._weights.buffer, self.filled + 2 * len(chunk))  # a byte that came fills at most two
        try:
            filled = self._decoder.put(chunk)
        except ValueError as error:
            raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: {error}") from None
        self._came = end
        yield filled
