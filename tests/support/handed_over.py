"""Models that are handed over within this process, by all of the way that they go between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os

import numpy as np
from numpy.typing import NDArray

from fedgsp import wire
from fedgsp.messages import ModelHeader, ModelRef
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import pipes
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.piped import until_readable, until_writable
from fedgsp.transfers.pipes import PIPE_BYTES
from fedgsp.v1 import model_pb2
from tests.support.holders import PLENTY, serving_store
from tests.support.weights import some_weights, vector

#: Fills a pipe many times, and not a whole number of times.
ELEMENTS = (16 * PIPE_BYTES + 12_345 * 4) // 4


LARGE = some_weights(7, vector(ELEMENTS))


def pipes_open() -> int:
    """Descriptors of pipes, and of the files that tell of them, which this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself, and those that are no pipes
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:fedgsp-"):
                found += 1
            else:
                found += fcntl.fcntl(int(name), fcntl.F_GETPIPE_SZ) == PIPE_BYTES
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


def an_outlet() -> pipes.Outlet:
    outlet = pipes.offer()
    assert outlet is not None
    return outlet


async def put(outlet: pipes.Outlet, content: NDArray[np.uint8]) -> None:
    """Put all of it into a pipe."""
    done = 0
    while (done := done + outlet.put(content[done:])) < content.nbytes:
        await until_writable(outlet.descriptor)


async def taken(inlet: pipes.Inlet, size: int) -> bytes:
    """The next bytes of a pipe, as many as said."""
    into, filled = bytearray(size), 0
    while filled < size:
        await until_readable(inlet.descriptor)
        got = inlet.take(memoryview(into)[filled:])
        assert got
        filled += got
    return bytes(into)


def offering(name: str) -> model_pb2.Chunk:
    return model_pb2.Chunk(
        header=wire.encode(ModelHeader(ModelRef("m", LARGE.buffer.nbytes), LARGE.tensors, pipe=name))
    )
