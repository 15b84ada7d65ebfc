"""The update of one client, g = (w_start - w_after) / lr, and the views of it that the client reveals (HCCT, eq. 5).

g consists of the trainable floating-point tensors, flattened, in the order of the model. Buffers of batch
normalisation are not parameters. Views are computed from g rounded to float32. Decision 0007 in docs/decisions
explains sketches.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import TensorSpec
from fedgsp.seeds import stream
from fedgsp.tensors.updates import LENGTH_BYTES, SKETCH_BYTES, trainable, trainable_size
from fedgsp.tensors.weights import Weights

#: Start, after, learning rate.
Step = tuple[Weights, Weights, float]
_BLOCK = 1 << 16  # floats of g that are in memory at a time


def reveal(view: str, start: Weights, after: Weights, learning_rate: float, seed: int) -> Weights:
    """One flat tensor named "update": all of g for the view `exact`, or the part of one layer for `layer:PREFIX`.

    Both are float32. For `sketch:BYTES` the tensor is uint8: the length of g as a float64, then 8 signs per byte.
    Sketches can be compared if they have the same seed and size. Raises ValueError for a view that does not exist, for
    a layer that the model does not have, and for weights of different models.
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

    The directions are the rows of the matrix H D H S. S = [S_1 S_2 ...] has one block next to the other. Each block is
    a permutation with random signs, so that two coordinates of one block never meet. D is a diagonal of random signs,
    and H is the Hadamard matrix. All clients must draw the same directions. Therefore all randomness comes from raw
    64-bit words, which numpy keeps equal in all versions; it does not promise this for permutations.
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
        # The lowest bit of a key gives the sign, and it almost never decides the order: both are independent.
        total += np.take_along_axis(values, np.argsort(keys, axis=1), axis=1).sum(axis=0, dtype=np.float64)
    # The first transform spreads an update with few large coordinates; the second then gives nearly normal values.
    _hadamard(total)
    _flip(total, words.random_raw(directions))
    _hadamard(total)
    shown = Weights.empty((TensorSpec("update", "uint8", (LENGTH_BYTES + size,)),))
    update = shown.arrays["update"]
    update[:LENGTH_BYTES] = np.frombuffer(np.array(math.sqrt(square), "<f8").tobytes(), np.uint8)
    update[LENGTH_BYTES:] = np.packbits(total < 0)
    return shown


def _flip(values: NDArray[np.floating], keys: NDArray[np.uint64]) -> None:
    """Negates, in place, each value whose key has the lowest bit set."""
    np.negative(values, out=values, where=(keys & np.uint64(1)).astype(bool))


def _hadamard(values: NDArray[np.float64]) -> None:
    """Multiplies by the Hadamard matrix (entries 1 and -1), in place, with n log n additions in a fixed order."""
    half = 1
    while half < len(values):
        pairs = values.reshape(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2


VIEWS: dict[str, Callable[[str, Step, int], Weights]] = {"exact": _exact, "layer": _layer, "sketch": _sketch}


def _blocks(specs: Iterable[TensorSpec], step: Step, size: int) -> Iterator[NDArray[np.float32]]:
    """The part of g that belongs to these tensors, in blocks of `size` floats; the last block may be shorter.

    A block is valid until the next one is asked for.
    """
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
