"""A lossless code for weights: the difference to a base that the receiver has, block by block.

The bits of each value are taken as an unsigned integer. A block is the differences to the same values of the base
(modulo a power of two, so that small negative differences become small numbers), split into planes: first the lowest
byte of every value, then the next, and so on. Trained weights differ little from those before the training, so the
upper planes are almost constant; zstd finds that. Without a base, planes are those of the values themselves.

A coded stream is a sequence of frames, one per block: kind, length (both in `_HEAD`), content. Sender and receiver
know from the tensors how many values each block has. So the receiver knows beforehand how many bytes a frame may
have, and how many come out of it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.spill import let_go, reserve
from fedgsp.tensors.weights import CODED, PACKED, Weights, require, stretches

#: Name of the code in a header.
CODING = "planes-zstd"
#: Values in a block: a plane of them is what zstd looks at as one piece.
BLOCK_VALUES = 1 << 17
#: Level of zstd. Planes hold hardly anything but frequent bytes; higher levels look for longer repetitions.
LEVEL = 1
#: Blocks, and values of each, from which the size of a code is estimated.
SAMPLED_BLOCKS, SAMPLED_VALUES = 6, 1 << 14

#: Kind of a frame: the values as they are, or their code.
PLAIN_VALUES, CODE = 0, 1
_HEAD = struct.Struct("<BI")
_UNSIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_SIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the buffer, with values of `stored` bytes, of which the upper `width` are in the code."""

    start: int
    end: int
    stored: int
    width: int

    @property
    def size(self) -> int:
        """Bytes of the values that are in the code."""
        return (self.end - self.start) // self.stored * self.width

    def of(self, weights: Weights) -> NDArray[Any]:
        """The values of weights, as unsigned integers of `width` bytes; a view."""
        values = weights.buffer[self.start : self.end].view(_UNSIGNED[self.width])
        return values[self.stored // self.width - 1 :: self.stored // self.width]


def blocks(tensors: tuple[TensorSpec, ...], bfloat16: bool) -> Iterator[Block]:
    """The blocks of a model in order; with `bfloat16` only the upper two bytes of each float32 count."""

    def kind(spec: TensorSpec) -> tuple[int, int]:
        stored = DTYPES[spec.dtype].itemsize
        return stored, 2 if bfloat16 and spec.dtype == "float32" else stored

    for (stored, width), start, end in stretches(tensors, kind):
        step = BLOCK_VALUES * stored
        for begin in range(start, end, step):
            yield Block(begin, min(end, begin + step), stored, width)


class Encoder:
    """Codes blocks of weights against a base with the same tensors, or without one. It serves one thread at a time."""

    def __init__(self, weights: Weights, base: Weights | None) -> None:
        self._weights, self._base = weights, base
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)

    def plain(self, block: Block) -> bytes:
        """The frame of a block with its values as they are."""
        try:
            return _HEAD.pack(PLAIN_VALUES, block.size) + block.of(self._weights).tobytes()
        finally:
            self._leave(block)

    def frame(self, block: Block) -> bytes:
        """The frame of a block: coded, if that is shorter."""
        values = block.of(self._weights)
        base = block.of(self._base) if self._base is not None else None
        content = self._zstd.compress(_split(_numbers(values, base)).data)
        if len(content) >= block.size:
            return self.plain(block)
        self._leave(block)
        return _HEAD.pack(CODE, len(content)) + content

    def _leave(self, block: Block) -> None:
        """Pages of a file leave memory after their use."""
        for weights in filter(None, (self._weights, self._base)):
            let_go(weights.buffer[block.start : block.end])


class Decoder:
    """Fills weights from a coded stream. Beside the weights it needs memory for one frame and one block."""

    def __init__(self, what: str, weights: Weights, base: Weights | None) -> None:
        """`what` names the model in errors; `base` has the same tensors."""
        self._what, self._weights, self._base = what, weights, base
        self._ahead = blocks(weights.tensors, weights.bfloat16)
        self._block = next(self._ahead, None)
        self._pending = bytearray()
        self._zstd = zstandard.ZstdDecompressor(max_window_size=1 << 20)
        #: How these weights come.
        self.coding = PACKED if base is None else CODED
        #: Number of bytes of the buffer that are filled.
        self.filled = 0

    @property
    def so_far(self) -> str:
        """How many bytes came, as text."""
        return f"{self.filled} of {len(self._weights.buffer)} bytes came in code"

    @property
    def complete(self) -> bool:
        """Whether the weights are full, and nothing is left over."""
        return self._block is None and not self._pending

    def put(self, chunk: memoryview) -> Iterator[NDArray[np.uint8]]:
        """Decodes the frames that a chunk completes; yields the parts of the buffer that they fill.

        Raises WeightsError for a code that is not that of such weights, and OSError if there is no disk for them.
        """
        self._pending += chunk
        while len(self._pending) >= (_HEAD.size if self._block is not None else 1):
            block = self._block
            require(block is not None, FailureCode.TOO_LONG, f"{self._what}: bytes came after its last block")
            assert block is not None
            kind, length = _HEAD.unpack_from(self._pending)
            self._check_head(block, kind, length)
            end = _HEAD.size + length
            if len(self._pending) < end:
                return
            content = bytes(self._pending[_HEAD.size : end])
            del self._pending[:end]
            yield self._decoded(block, kind, content)
            self._block = next(self._ahead, None)

    def _check_head(self, block: Block, kind: int, length: int) -> None:
        right = length == block.size if kind == PLAIN_VALUES else kind == CODE and 0 < length < block.size
        require(
            right,
            FailureCode.BAD_STREAM,
            f"{self._what}: a frame of kind {kind} with {length} bytes cannot be a block of {block.size} bytes",
        )

    def _decoded(self, block: Block, kind: int, content: bytes) -> NDArray[np.uint8]:
        filled = self._weights.buffer[block.start : block.end]
        if kind == PLAIN_VALUES:
            values = np.frombuffer(content, _UNSIGNED[block.width])
        else:
            base = block.of(self._base) if self._base is not None else None
            values = _values(_joined(self._unpacked(block, content), block.width), base)
            if self._base is not None:
                let_go(self._base.buffer[block.start : block.end])
        reserve(self._weights.buffer, block.end)
        if block.stored == block.width:
            filled.view(_UNSIGNED[block.stored])[...] = values
        else:
            shift = 8 * (block.stored - block.width)
            np.left_shift(values, shift, out=filled.view(_UNSIGNED[block.stored]), dtype=_UNSIGNED[block.stored])
        self.filled = block.end
        return filled

    def _unpacked(self, block: Block, content: bytes) -> bytes:
        """The planes of a block. They take no memory before their length is known to be right."""
        try:
            announced = zstandard.get_frame_parameters(content).content_size
            require(
                announced == block.size,
                FailureCode.BAD_STREAM,
                f"{self._what}: a code announces {announced} bytes for a block of {block.size}",
            )
            planes = self._zstd.decompress(content, max_output_size=block.size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            require(False, FailureCode.BAD_STREAM, f"{self._what}: a code cannot be read: {error}")
        require(len(planes) == block.size, FailureCode.BAD_STREAM, f"{self._what}: a code is too short")
        return bytes(planes)


def coded_size(weights: Weights, base: Weights | None) -> int:
    """Bytes of the code of a sample of the weights, to compare bases. It depends on nothing but the two models."""
    found = list(blocks(weights.tensors, weights.bfloat16))
    picked = found[:: -(-len(found) // SAMPLED_BLOCKS)] if found else []
    encoder = Encoder(weights, base)
    return sum(
        len(
            encoder.frame(
                Block(one.start, min(one.end, one.start + SAMPLED_VALUES * one.stored), one.stored, one.width)
            )
        )
        for one in picked
    )


def _numbers(values: NDArray[Any], base: NDArray[Any] | None) -> NDArray[Any]:
    """What is coded: small numbers for values that are close to the base."""
    size = values.itemsize
    if base is None:  # the sign last, so that the exponents of float32 and bfloat16 are whole bytes
        turned: NDArray[Any] = (values << 1) | (values >> (8 * size - 1))
        return turned
    gap = (values - base).view(_SIGNED[size])
    folded: NDArray[Any] = (gap << 1) ^ (gap >> (8 * size - 1))
    return folded.view(_UNSIGNED[size])


def _values(numbers: NDArray[Any], base: NDArray[Any] | None) -> NDArray[Any]:
    """The inverse of `_numbers`."""
    size = numbers.itemsize
    if base is None:
        turned: NDArray[Any] = (numbers >> 1) | (numbers << (8 * size - 1))
        return turned
    lowest = (numbers & 1).view(_SIGNED[size])
    np.negative(lowest, out=lowest)
    values: NDArray[Any] = ((numbers >> 1) ^ lowest.view(_UNSIGNED[size])) + base
    return values


def _split(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """The planes of numbers, lowest byte first, one after the other."""
    size = numbers.itemsize
    planes = np.empty((size, len(numbers)), np.uint8)
    for plane in range(size):
        np.copyto(planes[plane], numbers >> (8 * plane), casting="unsafe")
    return planes.reshape(-1)


def _joined(planes: bytes, size: int) -> NDArray[Any]:
    """The inverse of `_split`."""
    lines = np.frombuffer(planes, np.uint8).reshape(size, -1)
    numbers: NDArray[Any] = lines[0].astype(_UNSIGNED[size])
    for plane in range(1, size):
        numbers |= lines[plane].astype(_UNSIGNED[size]) << (8 * plane)
    return numbers
