"""Models that are handed over within this process, by all of the way that they go between processes."""

from __future__ import annotations

import contextlib
import os

from fedgsp import windows, wire
from fedgsp.messages import ModelHeader, ModelRef
from fedgsp.model_calls import fetch, upload
from fedgsp.model_store import ModelStore
from fedgsp.v1 import model_pb2
from fedgsp.weights import Weights
from fedgsp.windows import WINDOW_BYTES
from tests.support.holders import PLENTY, serving_store
from tests.support.weights import some_weights, vector

#: Through every slot more than once, and not a whole number of slots.
ELEMENTS = (2 * WINDOW_BYTES + 12_345 * 4) // 4


LARGE = some_weights(7, vector(ELEMENTS))


def windows_open() -> int:
    """Descriptors of windows that this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:fedgsp-")
    return found


async def fetched(weights: Weights) -> Weights:
    store = ModelStore()
    store.put("m", weights)
    async with serving_store(store) as served:
        return await fetch(served.channel, "m", weights.tensors, weights.buffer.nbytes)


async def uploaded(weights: Weights, receiver: str) -> Weights:
    store = ModelStore()
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        await upload(served.channel, "m", weights, receiver=receiver)
    return store.held("m")


def unknown(weights: Weights) -> Weights:
    """The same, with a digest that nobody has computed yet."""
    return Weights(weights.tensors, weights.buffer, bfloat16=weights.bfloat16)


def a_window() -> windows.Window:
    window = windows.lend()
    assert window is not None
    return window


def offering(name: str) -> model_pb2.Chunk:
    return model_pb2.Chunk(
        header=wire.encode(ModelHeader(ModelRef("m", LARGE.buffer.nbytes), LARGE.tensors, window=name))
    )
