"""A node that gets a model from a node on another machine notices when the link between them is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from fedgsp.connections import channels
from fedgsp.connections.channels import Channels, start_server
from fedgsp.messages import FailureCode, Source, SourceKind, Start, TensorSpec
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers import model_calls, pipes
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node import fetching
from fedgsp_node.fetching import Fetcher
from tests.support.callers import OPEN
from tests.support.fuzzing import soon, until
from tests.support.links import Link, link
from tests.support.weights import TENSORS, some_weights, vector

LOST_AFTER_S = 1.0
#: Much more than what is on its way at first.
LARGE = vector(2_000_000)


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All hosts are other machines, and the connection for models never ends by itself."""
    monkeypatch.setattr(channels, "is_near", lambda host: False)
    monkeypatch.setattr(fetching, "is_near", lambda host: False)
    monkeypatch.setattr(channels, "PATIENCE", 1_000)
    monkeypatch.setattr(model_calls, "SILENT_S", 0.3)
    monkeypatch.setattr(model_calls, "LOOK_AGAIN_S", 0.01)
    pipes.choose("network")
    yield
    pipes.choose("auto")


class Holder(ModelServicer):
    """Notes which calls wait for a model, and how many have ended."""

    def __init__(self, store: ModelStore, old: bool) -> None:
        """`old`: it does not know of watches."""
        super().__init__(store)
        self.watches: list[bool] = []
        self.old = old
        self.ended = 0

    async def Fetch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        first = await anext(requests)

        async def all_of_them() -> AsyncIterator[Any]:
            yield first
            async for request in requests:
                yield request

        self.watches.append(first.watch)
        first.watch = first.watch and not self.old
        try:
            async for chunk in super().Fetch(all_of_them(), context):
                yield chunk
        finally:
            self.ended += 1


@asynccontextmanager
async def reading(
    kind: SourceKind = SourceKind.NODE,
    old: bool = False,
    tensors: tuple[TensorSpec, ...] = TENSORS,
    holding: type[Holder] = Holder,
) -> AsyncIterator[tuple[Holder, ModelStore, Link, asyncio.Task[Any]]]:
    """A node waits for a promised model over a link."""
    store = ModelStore()
    holder = holding(store, old)
    server, address = await start_server("127.0.0.1:0", [holder.add_to], OPEN, lost_after_s=LOST_AFTER_S)
    try:
        async with link(address) as between, Channels(lost_after_s=LOST_AFTER_S, insecure=True) as dialled:
            fetcher = Fetcher(ModelStore(), dialled, tensors, "127.0.0.1")
            start = Start("m", (Source(kind, "n1", between.address),))
            task = asyncio.create_task(fetcher.get(start))
            try:
                yield holder, store, between, task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    finally:
        await server.stop(None)


async def test_a_cut_is_noticed_while_the_model_is_not_there_yet() -> None:
    async with reading() as (holder, _, between, task):
        await until(lambda: sorted(holder.watches) == [False, True])
        between.cut()
        with pytest.raises(WeightsError) as lost:
            await soon(task)
        assert lost.value.failure.code is FailureCode.UNREACHABLE


async def test_a_cut_is_noticed_while_the_model_comes() -> None:
    async with reading(tensors=LARGE) as (holder, store, between, task):
        await until(lambda: sorted(holder.watches) == [False, True])
        store.put("m", some_weights(tensors=LARGE))
        await soon(between.passed(20))
        between.cut()
        with pytest.raises(WeightsError) as lost:
            await soon(task)
        assert lost.value.failure.code is FailureCode.UNREACHABLE


class Unwatched(Holder):
    """Its connections for orders end again and again, while the bytes of a model come."""

    def __init__(self, store: ModelStore, old: bool) -> None:
        super().__init__(store, old)
        self.coming = asyncio.Event()

    async def Fetch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        sent = 0
        async for chunk in super().Fetch(requests, context):
            yield chunk
            sent += 1
            if sent == 20:  # more than may be on their way at first, so that the reader has some of them
                self.coming.set()
                await until(lambda: self.watches.count(True) > 3)
        if not sent:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "as gRPC says it of a connection that has ended")

    async def _watched(self, model_id: str) -> None:
        await self.coming.wait()


async def test_a_transfer_that_goes_on_outlives_the_connection_for_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "SILENT_S", 10.0)
    async with reading(tensors=LARGE, holding=Unwatched) as (holder, store, _, task):
        await until(lambda: sorted(holder.watches) == [False, True])
        store.put("m", some_weights(tensors=LARGE))
        weights, _, _ = await soon(task)
        assert weights.digest == some_weights(tensors=LARGE).digest


async def test_a_model_that_comes_ends_the_watch() -> None:
    async with reading() as (holder, store, _, task):
        await until(lambda: sorted(holder.watches) == [False, True])
        store.put("m", some_weights())
        weights, _, _ = await soon(task)
        assert weights.digest == some_weights().digest
        await until(lambda: holder.ended == 2)


async def test_a_model_that_will_not_come_ends_the_watch() -> None:
    async with reading() as (holder, store, _, task):
        await until(lambda: sorted(holder.watches) == [False, True])
        store.fail("m", WeightsError(FailureCode.CANCELLED, "called off").failure)
        with pytest.raises(WeightsError) as lost:
            await soon(task)
        assert lost.value.failure.code is FailureCode.NO_SUCH_MODEL
        await until(lambda: holder.ended == 2)


async def test_a_reader_that_stops_to_wait_ends_the_watch() -> None:
    async with reading() as (holder, _, _, task):
        await until(lambda: len(holder.watches) == 2)
        task.cancel()
        await until(lambda: holder.ended == 2)


async def test_a_holder_of_an_older_version_answers_twice_and_is_read_once() -> None:
    async with reading(old=True) as (holder, store, _, task):
        await until(lambda: len(holder.watches) == 2)
        store.put("m", some_weights())
        weights, _, _ = await soon(task)
        assert weights.digest == some_weights().digest
        await until(lambda: holder.ended == 2)


@pytest.mark.parametrize("kind", [SourceKind.MANAGER, SourceKind.TOP_SERVER])
async def test_servers_are_not_watched_because_nodes_have_sessions_with_them(kind: SourceKind) -> None:
    async with reading(kind) as (holder, store, _, task):
        await until(lambda: len(holder.watches) == 1)
        store.put("m", some_weights())
        await soon(task)
        assert holder.watches == [False]
