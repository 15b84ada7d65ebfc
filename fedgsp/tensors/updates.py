"""Updates of clients: the tensors they consist of, their sizes and the ids under which they are held."""

import math
from collections.abc import Iterable

from fedgsp.messages import TensorSpec
from fedgsp.tensors.dtypes import DTYPES, is_float

#: Allowed sizes of a sketch in bytes, without its length, as written in the name of a view.
SKETCH_BYTES = tuple(str(1 << power) for power in range(3, 18))
#: Bytes of the update's length at the beginning of a sketch: a little-endian float64.
LENGTH_BYTES = 8


def trainable(tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """The tensors of an update, in order: float parameters that are trained, without buffers."""
    return [spec for spec in tensors if spec.trainable and is_float(DTYPES[spec.dtype])]


def trainable_size(tensors: Iterable[TensorSpec]) -> int:
    """Number of floats in an update."""
    return sum(math.prod(spec.shape) for spec in trainable(tensors))


def update_of(model_id: str) -> str:
    """The id of the view that a client reveals of its update, from the id of the trained model."""
    return f"{model_id}.update"
