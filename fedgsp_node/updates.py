"""The update of one client, g = (w_start - w_after) / lr, and what the client shows of it (HCCT, eq. 5).

Only trainable floating tensors count, flat and one after the other in the order of the model: buffers of batch
normalisation are no parameters. Every view is of g rounded to float32. Sketches: docs/decisions, 0007.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedgsp.messages import TensorSpec
from fedgsp.seeds import stream
from fedgsp.updates import LENGTH_BYTES, SKETCH_BYTES, trainable, trainable_size
from fedgsp.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    #: Start, after, learning rate.
    Step = tuple[Weights, Weights, float]

_BLOCK = 1 << 16  # floats of g that exist at a time


def reveal(view: str, start: Weights, after: Weights, learning_rate: float, seed: int) -> Weights:
    """One flat tensor "update": all of g for `exact`, a layer's part for `layer:PREFIX`, both float32.

    For `sketch:BYTES` uint8: the length of g, then 8 signs a byte. Sketches can be compared with one another if they
    were made with the same seed and size. Raises ValueError for a view that does not exist, a layer that the model
    does not have, and weights of two models.
    """
    kind, _, argument = view.partition(":")
    if kind not in VIEWS:
        raise ValueError(f"no view of an update is called {view!r}; there are: {', '.join(VIEWS)}")
    if start.tensors != after.tensors:
        raise ValueError("an update is the difference of two weights of one model")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"a learning rate of {learning_rate} gives no update")
    return VIEWS[kind](argument, (start, after, learning_rate), seed)


def _exact(argument: str, step: Step, seed: int) -> Weights:
    if argument:
        raise ValueError(f"the view exact takes nothing after it, but got {argument!r}")
    return _joined(trainable(step[0].tensors), step)


def _layer(prefix: str, step: Step, seed: int) -> Weights:
    names = [f"{prefix}.{part}" if prefix else part for part in ("weight", "bias")]
    specs = [spec for spec in trainable(step[0].tensors) if spec.name in names]
    if not any(spec.name == names[0] for spec in specs):
        raise ValueError(f"the model has no layer {prefix!r} with a trainable weight")
    return _joined(specs, step)


def _sketch(argument: str, step: Step, seed: int) -> Weights:
    """The length of g, and the signs of its products with random directions (Charikar, STOC 2002).

    The directions are the rows of H D H S: S = [S_1 S_2 ...] side by side, each a permutation with random signs, so
    that coordinates of one block never collide; D random signs; H Hadamard's matrix. All randomness comes from raw
    64-bit words: numpy promises those for all versions, which it does not for permutations, and every client must have
    the same.
    """
    if argument not in SKETCH_BYTES:
        raise ValueError(f"the signs of a sketch are {', '.join(SKETCH_BYTES)} bytes, not {argument!r}")
    size = int(argument)
    directions = 8 * size
    words = stream(seed, "sketch").bit_generator
    total, square = np.zeros(directions), 0.0
    for block in _blocks(trainable(step[0].tensors), step, max(1, _BLOCK // directions) * directions):
        square += float(np.square(block, dtype=np.float64).sum())
        rows = -(-len(block) // directions)
        values = np.zeros((rows, directions), np.float32)
        values.reshape(-1)[: len(block)] = block
        keys = words.random_raw(rows * directions).reshape(rows, directions)
        _flip(values, keys)
        # The lowest bit gave the sign and next to never decides the order, so signs and order are independent.
        total += np.take_along_axis(values, np.argsort(keys, axis=1), axis=1).sum(axis=0, dtype=np.float64)
    # The first turn spreads an update that only a few coordinates are large in, so that the second is near normal.
    _hadamard(total)
    _flip(total, words.random_raw(directions))
    _hadamard(total)
    shown = Weights.empty((TensorSpec("update", "uint8", (LENGTH_BYTES + size,)),))
    update = shown.arrays["update"]
    update[:LENGTH_BYTES] = np.frombuffer(np.array(math.sqrt(square), "<f8").tobytes(), np.uint8)
    update[LENGTH_BYTES:] = np.packbits(total < 0)
    return shown


def _flip(values: NDArray[np.floating], keys: NDArray[np.uint64]) -> None:
    """The sign of each value by the lowest bit of its key."""
    np.negative(values, out=values, where=(keys & np.uint64(1)).astype(bool))


def _hadamard(values: NDArray[np.float64]) -> None:
    """Multiplies by Hadamard's matrix (of entries 1 and -1), in place, n log n additions in a fixed order."""
    half = 1
    while half < len(values):
        pairs = values.reshape(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2


VIEWS: dict[str, Callable[[str, Step, int], Weights]] = {"exact": _exact, "layer": _layer, "sketch": _sketch}


def _blocks(specs: Iterable[TensorSpec], step: Step, size: int) -> Iterator[NDArray[np.float32]]:
    """The tensors' part of g, `size` floats at a time (the last block may be shorter), each valid until the next."""
    start, after, learning_rate = step
    block = np.empty(size, np.float32)
    filled = 0
    for spec in specs:
        before, now = (weights.arrays[spec.name].reshape(-1) for weights in (start, after))
        position = 0
        while position < len(before):
            part = slice(position, position + size - filled)
            difference = np.subtract(before[part], now[part], dtype=np.float64)
            block[filled : filled + len(difference)] = difference / learning_rate
            position += len(difference)
            filled += len(difference)
            if filled == size:
                yield block
                filled = 0
    if filled:
        yield block[:filled]


def _joined(specs: list[TensorSpec], step: Step) -> Weights:
    shown = Weights.empty((TensorSpec("update", "float32", (trainable_size(specs),)),))
    position = 0
    for block in _blocks(specs, step, _BLOCK):
        shown.arrays["update"][position : position + len(block)] = block
        position += len(block)
    return shown
