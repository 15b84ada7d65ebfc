"""Models and orders to another machine share a link, but no connection."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import numpy as np
import pytest

from fedgsp.connections.channels import Channels, start_server
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import pipes
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from tests.support.callers import OPEN

COUNT = 60_000
TENSORS = (TensorSpec("w", "float32", (COUNT,)),)


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("fedgsp.connections.channels.is_near", lambda host: False)
    pipes.choose("network")  # neither end says on which machine it is
    yield
    pipes.choose("auto")


def echo(server: grpc.aio.Server) -> None:
    async def answer(request: bytes, _: object) -> bytes:
        return request

    handler = grpc.method_handlers_generic_handler("test", {"Echo": grpc.unary_unary_rpc_method_handler(answer)})
    server.add_generic_rpc_handlers((handler,))


@asynccontextmanager
async def behind_link(address: str, *numbers: float) -> AsyncIterator[str]:
    """An address at which a server is reached over a link that all connections share: see `slow_link`."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-m", "benchmarks.performance.slow_link", "127.0.0.1", host, port]
    link = await asyncio.create_subprocess_exec(*command, *map(str, numbers), stdout=asyncio.subprocess.PIPE)
    assert link.stdout is not None
    try:
        yield f"127.0.0.1:{int(await link.stdout.readline())}"
    finally:
        link.kill()
        await link.wait()


async def test_models_have_a_channel_to_another_machine_and_none_on_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Channels(insecure=True) as channels:
        orders, models = [await channels.to("127.0.0.1:1", TOP_SERVER, models=kind) for kind in (False, True)]
        assert orders is not models
        assert await channels.line("127.0.0.1:1", TOP_SERVER).dial() is models
        await channels.drop("127.0.0.1:1")
        assert await channels.to("127.0.0.1:1", TOP_SERVER, models=True) is not models
    monkeypatch.undo()
    async with Channels() as channels:
        assert await channels.to("127.0.0.1:1", TOP_SERVER) is await channels.to(
            "127.0.0.1:1", TOP_SERVER, models=True
        )


async def test_an_order_overtakes_a_model_on_a_thin_link() -> None:
    store = ModelStore()
    store.put("m", Weights.of({"w": np.ones(COUNT, np.float32)}, TENSORS))
    came = asyncio.Semaphore(0)
    server, address = await start_server("127.0.0.1:0", [ModelServicer(store).add_to, echo], OPEN)
    try:
        async with (
            behind_link(address, 1e5, 0.02) as reached,
            Channels(insecure=True) as channels,
        ):
            orders = await channels.to(reached, TOP_SERVER)
            await orders.channel_ready()
            models = await channels.to(reached, TOP_SERVER, models=True)
            fetching = asyncio.create_task(fetch(models, "m", TENSORS, 1 << 30, came.release))
            for _ in range(2):
                await came.acquire()
            assert await orders.unary_unary("/test/Echo")(b"hello") == b"hello"
            assert not fetching.done()
            assert (await fetching).digest == (await store.get("m")).digest
    finally:
        await server.stop(None)


@pytest.mark.slow
async def test_an_upload_goes_on_over_a_link_that_becomes_slow() -> None:
    """What is on its way then takes eight seconds. A ping would wait behind it, for longer than it may."""
    tensors = (TensorSpec("w", "float32", (750_000,)),)
    weights = Weights.of({"w": np.random.default_rng(0).normal(size=750_000).astype(np.float32)}, tensors)
    store = ModelStore()
    service = ModelServicer(store, may_upload=lambda _: True, max_bytes=lambda: 1 << 30)
    server, address = await start_server("127.0.0.1:0", [service.add_to], OPEN, lost_after_s=1.0)
    try:
        async with (
            behind_link(address, 4e6, 0.02, 2.6e6, 5e4) as reached,
            Channels(lost_after_s=1.0, insecure=True) as channels,
        ):
            await upload(await channels.to(reached, TOP_SERVER, models=True), "m", weights)
    finally:
        await server.stop(None)
    assert store.held("m").digest == weights.digest
