"""Weights: named tensors in one contiguous buffer, which is also what travels."""

from __future__ import annotations

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
from numpy.typing import NDArray
from xxhash import xxh3_128

from fedgsp.memory import room
from fedgsp.messages import Failure, FailureCode, ModelRef, TensorSpec
from fedgsp.spill import at_rest, walk

Kind = TypeVar("Kind")

#: What a tensor may be. Anything else from a peer is refused before a byte is allocated for it.
DTYPES = {
    name: np.dtype(name)
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
}
#: Kinds of those of which not all bytes are a value.
_CHECKED = "fb"
#: Axes that a tensor may have; numpy itself takes 64.
MAX_DIMENSIONS = 32


class WeightsError(Exception):
    """Weights that cannot be had or are refused; carries the reason as a value."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(f"{code.name.lower()}: {detail}")
        self.failure = Failure(code, detail)


def nbytes(spec: TensorSpec) -> int:
    """Bytes of one tensor, without padding."""
    return math.prod(spec.shape) * DTYPES[spec.dtype].itemsize


def padded_bytes(spec: TensorSpec) -> int:
    """Bytes of one tensor in the buffer: every one starts where an int64 may."""
    return (nbytes(spec) + 7) & ~7


def places(tensors: tuple[TensorSpec, ...]) -> Iterator[tuple[TensorSpec, int]]:
    """Every tensor, and where it begins in the buffer."""
    offset = 0
    for spec in tensors:
        yield spec, offset
        offset += padded_bytes(spec)


def stretches(tensors: tuple[TensorSpec, ...], kind: Callable[[TensorSpec], Kind]) -> Iterator[tuple[Kind, int, int]]:
    """Neighbouring tensors of one kind: the kind, and where in the buffer they begin and end, padding and all."""
    for found, alike in itertools.groupby(places(tensors), lambda place: kind(place[0])):
        members = list(alike)
        last, offset = members[-1]
        yield found, members[0][1], offset + padded_bytes(last)


def total_bytes(tensors: tuple[TensorSpec, ...]) -> int:
    """Bytes of a whole model in its buffer; raises WeightsError for tensors that no model may have."""
    names: set[str] = set()
    for spec in tensors:
        if spec.name in names:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} is named twice")
        if spec.dtype not in DTYPES:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} has dtype {spec.dtype!r}")
        if len(spec.shape) > MAX_DIMENSIONS:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} has {len(spec.shape)} dimensions")
        # numpy counts elements so, and refuses the shape even where one of its axes is empty
        if math.prod(max(1, size) for size in spec.shape) > sys.maxsize // DTYPES[spec.dtype].itemsize:
            raise WeightsError(FailureCode.WRONG_SHAPES, f"tensor {spec.name!r} has shape {list(spec.shape)}")
        names.add(spec.name)
    total = sum(padded_bytes(spec) for spec in tensors)
    if total > sys.maxsize:
        raise WeightsError(FailureCode.WRONG_SHAPES, f"{len(tensors)} tensors have {total} bytes")
    return total


@dataclass(eq=False)
class Weights:
    """A model's tensors; `buffer` is uint8 of shape (total_bytes,)."""

    tensors: tuple[TensorSpec, ...]
    buffer: NDArray[np.uint8]
    #: The digest, once somebody has computed it.
    known_digest: bytes | None = field(default=None, repr=False)
    #: Whether every float32 is a bfloat16: see `encoding`.
    bfloat16: bool = False
    _digesting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @classmethod
    def empty(cls, tensors: tuple[TensorSpec, ...]) -> Weights:
        """Room for a model, with undefined values but zeroed padding."""
        weights = cls(tensors, room(total_bytes(tensors)))
        weights.clear_padding()
        return weights

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.generic]], like: tuple[TensorSpec, ...]) -> Weights:
        """Copies arrays into one buffer laid out as `like`."""
        weights = cls.empty(like)
        for name, view in weights.arrays.items():
            view[...] = arrays[name]
        return weights

    @cached_property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Views of the tensors, in order."""
        views: dict[str, NDArray[np.generic]] = {}
        for spec, offset in places(self.tensors):
            part = self.buffer[offset : offset + nbytes(spec)]
            views[spec.name] = part.view(DTYPES[spec.dtype]).reshape(spec.shape)
        return views

    @property
    def digest(self) -> bytes:
        """XXH3 (128 bits) of the buffer, computed once whoever asks; the buffer must not change any more."""
        with self._digesting:
            if self.known_digest is None:
                hasher = xxh3_128()
                for piece in walk(self.buffer):
                    hasher.update(piece.data)
                self.known_digest = hasher.digest()
            return self.known_digest

    def clear_padding(self) -> None:
        """Zeroes what lies between the tensors: the same tensors always have the same digest."""
        for spec, offset in places(self.tensors):
            self.buffer[offset + nbytes(spec) : offset + padded_bytes(spec)] = 0

    def ref(self, model_id: str) -> ModelRef:
        """The reference under which these weights are known."""
        return ModelRef(model_id, self.buffer.nbytes, self.digest)

    def part(self, tensors: tuple[TensorSpec, ...]) -> Weights:
        """Those of the tensors that are named, copied unless they are all."""
        if tensors == self.tensors:
            return self
        part = Weights.of(self.arrays, tensors)
        part.bfloat16 = self.bfloat16
        return part

    def at_rest(self) -> Weights:
        """The same weights, in a file if they are large: for who keeps them and seldom looks."""
        return Weights(self.tensors, at_rest(self.buffer), self.known_digest, self.bfloat16)

    def to_change(self) -> Weights:
        """The same buffer, as weights whose digest is open again."""
        return Weights(self.tensors, self.buffer)

    def copy(self) -> Weights:
        """The same weights in a buffer of their own."""
        copy = Weights(self.tensors, room(len(self.buffer)))
        copy.buffer[...] = self.buffer
        return copy


def without_head(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The tensors that travel in schemes whose classifier heads stay with the clients."""
    return tuple(spec for spec in tensors if not spec.head)


def check_finite(weights: Weights) -> None:
    """Raises WeightsError if any float is NaN or infinite, or any bool neither true nor false."""
    for name, array in weights.arrays.items():
        if array.dtype.kind in _CHECKED and not all(_sound(piece) for piece in walk(array.reshape(-1))):
            what = "NaN or infinite values" if array.dtype.kind == "f" else "bytes that are no truth values"
            raise WeightsError(FailureCode.NOT_FINITE, f"tensor {name!r} holds {what}")


def _sound(piece: NDArray[Any]) -> bool:
    return bool(np.isfinite(piece).all() if piece.dtype.kind == "f" else (piece.view(np.uint8) <= 1).all())


class Finiteness:
    """Looks whether weights are finite while their buffer fills: what just came is still in the cache."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        # With what lies between them.
        self._ahead = deque(
            (start, end, dtype)
            for dtype, start, end in stretches(weights.tensors, lambda spec: DTYPES[spec.dtype])
            if dtype.kind in _CHECKED and end > start
        )
        self._in_doubt = False

    def filled_to(self, end: int) -> None:
        """The buffer is filled up to `end`."""
        while self._ahead:
            start, stop, dtype = self._ahead[0]
            looked = start + max(0, min(end, stop) - start) // dtype.itemsize * dtype.itemsize
            if looked == start:
                return
            self._in_doubt = self._in_doubt or not _sound(self._weights.buffer[start:looked].view(dtype))
            self._ahead.popleft()
            if looked < stop:
                self._ahead.appendleft((looked, stop, dtype))
                return

    def check(self) -> None:
        """Raises WeightsError if the full buffer holds what `check_finite` refuses."""
        if self._in_doubt:
            check_finite(self._weights)  # which knows tensors from what is between them


def check_same_tensors(found: tuple[TensorSpec, ...], expected: tuple[TensorSpec, ...], whose: str) -> None:
    """Raises WeightsError naming the first tensor that differs."""
    for mine, theirs in zip(expected, found, strict=False):
        if mine != theirs:
            raise WeightsError(
                FailureCode.WRONG_SHAPES,
                f"{whose} has {_described(theirs)} where {_described(mine)} is expected",
            )
    if len(found) != len(expected):
        raise WeightsError(
            FailureCode.WRONG_SHAPES, f"{whose} has {len(found)} tensors where {len(expected)} are expected"
        )


def _described(spec: TensorSpec) -> str:
    return f"{'tensor' if spec.trainable else 'buffer'} {spec.name!r} {spec.dtype}{list(spec.shape)}"
