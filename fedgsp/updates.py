"""What nodes, group managers and the top server agree on about updates: which numbers they hold, and their names."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedgsp.messages import TensorSpec
from fedgsp.weights import DTYPES

#: Bytes of the signs that a sketch may have, as they are written in a view.
SKETCH_BYTES = tuple(str(1 << power) for power in range(3, 18))
#: Bytes of the length that a sketch begins with, a little-endian float64.
LENGTH_BYTES = 8


def trainable(tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """The tensors that an update consists of, in order: buffers of batch normalisation are no parameters."""
    return [spec for spec in tensors if spec.trainable and DTYPES[spec.dtype].kind == "f"]


def trainable_size(tensors: Iterable[TensorSpec]) -> int:
    """Floats of an update."""
    return sum(math.prod(spec.shape) for spec in trainable(tensors))


def update_of(model_id: str) -> str:
    """The id of what a client reveals of the update that made a model."""
    return f"{model_id}.update"
