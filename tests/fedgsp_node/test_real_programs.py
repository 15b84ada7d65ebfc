"""The programs of a real manager on real nodes, all in this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import numpy as np
import pytest

from fedgsp import wire
from fedgsp.messages import (
    GroupEvent,
    GroupResult,
    RelayMode,
    RunGroupRequest,
    TrainingSettings,
)
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc
from tests.support.attached import manager, node
from tests.support.serving import serving
from tests.support.toy_task import Toy


@asynccontextmanager
async def top_server_with(weights: Any) -> AsyncIterator[str]:
    store = ModelStore()
    store.put("start", weights)

    def register(server: grpc.aio.Server) -> None:
        ModelServicer(store).add_to(server)

    async with serving(register) as served:
        yield served.address


async def toy(program: str, order: Sequence[int], epochs: int, relay: RelayMode) -> float:
    """The toy problem's w after a program on two nodes, fetched from the manager."""
    settings = TrainingSettings("sgd", epochs, 10, 0.1, seed=0)
    async with contextlib.AsyncExitStack() as stack:
        m = await stack.enter_async_context(manager())
        nodes = [await stack.enter_async_context(node(m, Toy(), [client], f"n{client}")) for client in (0, 1)]
        start = nodes[0].clients.initial_weights(0)
        address = await stack.enter_async_context(top_server_with(start))
        members = tuple(nodes[client].member(client) for client in order)
        request = RunGroupRequest(
            *("run", 1, 0, program, members, start.ref("start"), address),
            *(relay, False, settings, 30.0, start.buffer.nbytes),
        )
        stub = group_pb2_grpc.GroupServiceStub(m.served.channel)
        events = [wire.decode(GroupEvent, proto).kind async for proto in stub.RunGroup(wire.encode(request))]
        result = events[-1]
        assert isinstance(result, GroupResult), result
        assert result.ref is not None
        assert (result.bytes_direct > 0) == (program == "relay" and relay is not RelayMode.MANAGER)
        weights = await m.store.get(result.ref.id)
        assert np.array_equal(weights.ref("").digest, result.ref.digest)
        return float(weights.arrays["w"][0])


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.DIRECT, RelayMode.MANAGER])
@pytest.mark.parametrize(("order", "expected"), [((0, 1), 1.21), ((1, 0), 1.17)])
async def test_the_toy_relay_gives_the_published_values(
    order: tuple[int, int], expected: float, relay: RelayMode
) -> None:
    assert await toy("relay", order, 1, relay) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.MANAGER])
async def test_the_toy_mean_gives_the_published_value(relay: RelayMode) -> None:
    assert await toy("parallel", (0, 1), 2, relay) == pytest.approx(1.38, abs=1e-12)
