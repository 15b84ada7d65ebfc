"""Weights: the named tensors of a model in one contiguous buffer, whose bytes are also what travels."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedgsp.messages import Failure, FailureCode, ModelRef, TensorSpec
from fedgsp.tensors.dtypes import DTYPES, is_float
from fedgsp.tensors.memory import room
from fedgsp.tensors.spill import at_rest, walk

Kind = TypeVar("Kind")

#: Bytes of a digest (BLAKE3).
DIGEST_BYTES = 32
#: Largest number of axes of a tensor; numpy allows 64.
MAX_DIMENSIONS = 32


class WeightsError(Exception):
    """Weights that cannot be fetched, or are refused; `failure` is the reason."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(f"{code.name.lower()}: {detail}")
        self.failure = Failure(code, detail)


def require(holds: bool, code: FailureCode, detail: str) -> None:
    """Raise WeightsError with this code and detail unless a condition holds."""
    if not holds:
        raise WeightsError(code, detail)


@contextlib.contextmanager
def disk_for(what: str) -> Iterator[None]:
    """Raise WeightsError in place of the OSError of a full disk, which the bytes of this model do not fit on."""
    try:
        yield
    except OSError as error:
        raise WeightsError(FailureCode.NO_ROOM, f"{what}: no disk for its bytes: {error.strerror}") from None


def nbytes(spec: TensorSpec) -> int:
    """Number of bytes of one tensor, without padding."""
    return math.prod(spec.shape) * DTYPES[spec.dtype].itemsize


def padded_bytes(spec: TensorSpec) -> int:
    """Number of bytes of one tensor in the buffer: each tensor begins at a multiple of 8 bytes."""
    return (nbytes(spec) + 7) & ~7


def places(tensors: tuple[TensorSpec, ...]) -> Iterator[tuple[TensorSpec, int]]:
    """Every tensor, with the offset in bytes at which it begins in the buffer."""
    offset = 0
    for spec in tensors:
        yield spec, offset
        offset += padded_bytes(spec)


def stretches(tensors: tuple[TensorSpec, ...], kind: Callable[[TensorSpec], Kind]) -> Iterator[tuple[Kind, int, int]]:
    """Runs of neighbouring tensors of one kind: the kind, and their begin and end in the buffer with padding."""
    for found, alike in itertools.groupby(places(tensors), lambda place: kind(place[0])):
        members = list(alike)
        last, offset = members[-1]
        yield found, members[0][1], offset + padded_bytes(last)


def total_bytes(tensors: tuple[TensorSpec, ...]) -> int:
    """Number of bytes of a model's buffer; raises WeightsError for tensors that no model may have."""
    names: set[str] = set()
    for spec in tensors:
        if spec.name in names:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} is named twice")
        if spec.dtype not in DTYPES:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} has dtype {spec.dtype!r}")
        if len(spec.shape) > MAX_DIMENSIONS:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} has {len(spec.shape)} dimensions")
        # numpy counts elements in this way, and refuses such a shape even if one axis is empty
        if math.prod(max(1, size) for size in spec.shape) > sys.maxsize // DTYPES[spec.dtype].itemsize:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} has shape {list(spec.shape)}")
        names.add(spec.name)
    total = sum(padded_bytes(spec) for spec in tensors)
    require(total <= sys.maxsize, FailureCode.WRONG_SHAPES, f"{len(tensors)} tensors have {total} bytes")
    return total


#: How weights came: their bytes as they are, coded against a base, coded without a base, or through a pipe.
RAW, CODED, PACKED, MEMORY = CODINGS = ("raw", "coded", "packed", "memory")


@dataclass(frozen=True, slots=True)
class Came:
    """How weights came from another process."""

    #: Bytes that travelled over a connection, without the messages around them.
    travelled: int
    #: RAW, CODED, PACKED or MEMORY.
    coding: str


@dataclass(eq=False)
class Weights:
    """The tensors of a model; `buffer` is a uint8 array of shape (total_bytes,)."""

    tensors: tuple[TensorSpec, ...]
    buffer: NDArray[np.uint8]
    #: The digest, if it was computed already.
    known_digest: bytes | None = field(default=None, repr=False)
    #: Whether every float32 value is a bfloat16 (see `encoding`).
    bfloat16: bool = False
    #: How the weights came here; None if they were made here.
    came: Came | None = field(default=None, repr=False)
    _digesting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @classmethod
    def empty(cls, tensors: tuple[TensorSpec, ...]) -> Weights:
        """Memory for a model: the values are undefined, the padding is zero."""
        weights = cls(tensors, room(total_bytes(tensors)))
        weights.clear_padding()
        return weights

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.generic]], like: tuple[TensorSpec, ...]) -> Weights:
        """Copy arrays into one buffer with the layout of the tensors `like`."""
        weights = cls.empty(like)
        for name, view in weights.arrays.items():
            view[...] = arrays[name]
        return weights

    @cached_property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Views of the tensors, in order."""
        return {
            spec.name: self.buffer[offset : offset + nbytes(spec)].view(DTYPES[spec.dtype]).reshape(spec.shape)
            for spec, offset in places(self.tensors)
        }

    @property
    def digest(self) -> bytes:
        """BLAKE3 (256 bits) of the buffer, computed once. The buffer must not change afterwards."""
        with self._digesting:
            if self.known_digest is None:
                hasher = blake3()
                for piece in walk(self.buffer):
                    hasher.update(piece.data)
                self.known_digest = hasher.digest()
            return self.known_digest

    def clear_padding(self) -> None:
        """Set the padding between the tensors to zero, so that equal tensors have equal digests."""
        for spec, offset in places(self.tensors):
            self.buffer[offset + nbytes(spec) : offset + padded_bytes(spec)] = 0

    def ref(self, model_id: str) -> ModelRef:
        """The reference under which these weights are known."""
        return ModelRef(model_id, self.buffer.nbytes, self.digest)

    def part(self, tensors: tuple[TensorSpec, ...]) -> Weights:
        """The weights of the named tensors only; a copy, unless all tensors are named."""
        if tensors == self.tensors:
            return self
        part = Weights.of(self.arrays, tensors)
        part.bfloat16 = self.bfloat16
        return part

    def at_rest(self) -> Weights:
        """The same weights, file-backed if they are large, for long-term holders."""
        return Weights(self.tensors, at_rest(self.buffer), self.known_digest, self.bfloat16)

    def to_change(self) -> Weights:
        """The same buffer as weights without a known digest, for code that changes them."""
        return Weights(self.tensors, self.buffer)

    def copy(self) -> Weights:
        """A copy of the weights."""
        copy = Weights(self.tensors, room(len(self.buffer)))
        copy.buffer[...] = self.buffer
        return copy


def without_head(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The tensors without the classifier head: these travel in schemes in which heads stay with the clients."""
    return tuple(spec for spec in tensors if not spec.head)


def check_finite(weights: Weights) -> None:
    """Raise WeightsError if a float is NaN or infinite, or a bool is neither 0 nor 1."""
    for name, array in weights.arrays.items():
        if _checked(array.dtype) and not all(_sound(piece) for piece in walk(array.reshape(-1))):
            what = "NaN or infinite values" if is_float(array.dtype) else "bytes that are neither true nor false"
            raise WeightsError(FailureCode.NOT_FINITE, f"tensor {name!r} holds {what}")


def _checked(dtype: np.dtype[Any]) -> bool:
    """Whether values of a dtype must be checked: not every pattern of bytes is a valid value."""
    return is_float(dtype) or dtype.kind == "b"


def _sound(piece: NDArray[Any]) -> bool:
    return bool(np.isfinite(piece).all() if is_float(piece.dtype) else (piece.view(np.uint8) <= 1).all())


def _is_rounded(piece: NDArray[Any]) -> bool:
    """Whether all values of a piece are bfloat16, if they are float32."""
    return piece.dtype != np.float32 or not piece.view(np.uint16)[::2].any()


class Finiteness:
    """Checks that weights are finite while their buffer is filled, because new bytes are still in the cache.

    It also checks that weights that are said to be bfloat16 are.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        # The runs include the padding between tensors.
        self._ahead = deque(
            (start, end, dtype)
            for dtype, start, end in stretches(weights.tensors, lambda spec: DTYPES[spec.dtype])
            if _checked(dtype) and end > start
        )
        self._in_doubt, self._rounded = False, True

    def filled_to(self, end: int) -> None:
        """Check the bytes up to `end`, to which the buffer is filled now."""
        while self._ahead:
            start, stop, dtype = self._ahead[0]
            looked = start + max(0, min(end, stop) - start) // dtype.itemsize * dtype.itemsize
            if looked == start:
                return
            piece = self._weights.buffer[start:looked].view(dtype)
            self._in_doubt = self._in_doubt or not _sound(piece)
            self._rounded = self._rounded and (not self._weights.bfloat16 or _is_rounded(piece))
            self._ahead.popleft()
            if looked < stop:
                self._ahead.appendleft((looked, stop, dtype))
                return

    def check(self, gone: bool = False) -> None:
        """Raise WeightsError if the full buffer holds a value that `check_finite` refuses, or that is no bfloat16.

        If its bytes are gone, values in the padding are refused, too.
        """
        require(not (self._in_doubt and gone), FailureCode.NOT_FINITE, "it may hold NaN or infinite values")
        require(self._rounded, FailureCode.BAD_STREAM, "it is said to hold bfloat16, and holds other values")
        if self._in_doubt:
            check_finite(self._weights)  # looks at the tensors without the padding


def check_same_tensors(found: tuple[TensorSpec, ...], expected: tuple[TensorSpec, ...], whose: str) -> None:
    """Raise WeightsError that names the first tensor that differs; `whose` model it is stands in the error."""
    for mine, theirs in zip(expected, found, strict=False):
        if mine != theirs:
            raise WeightsError(
                FailureCode.WRONG_SHAPES,
                f"{whose} has {_described(theirs)} where {_described(mine)} is expected",
            )
    require(
        len(found) == len(expected),
        FailureCode.WRONG_SHAPES,
        f"{whose} has {len(found)} tensors where {len(expected)} are expected",
    )


def _described(spec: TensorSpec) -> str:
    return f"{'tensor' if spec.trainable else 'buffer'} {spec.name!r} {spec.dtype}{list(spec.shape)}"
