"""Small weights to send about."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedgsp.messages import Source, TensorSpec
from fedgsp.tensors.weights import Weights

#: Padded to 24 + 8 + 8 bytes.
TENSORS = (
    TensorSpec("w", "float32", (2, 3)),
    TensorSpec("h", "float16", (3,)),
    TensorSpec("seen", "int64", (), trainable=False),
)


def some_weights(seed: int = 0, tensors: tuple[TensorSpec, ...] = TENSORS) -> Weights:
    rng = np.random.default_rng(seed)
    weights = Weights.empty(tensors)
    for array in weights.arrays.values():
        array[...] = rng.integers(-100, 100, array.shape)
    return weights


def vector(elements: int) -> tuple[TensorSpec, ...]:
    """One tensor of that many float32."""
    return (TensorSpec("w", "float32", (elements,)),)


def said(source: Source, size: int) -> Source:
    """What a report says of a source that gave so many bytes over a connection, as they are."""
    return dataclasses.replace(source, travelled=size, coding="raw")
