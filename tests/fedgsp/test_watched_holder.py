"""A node that waits for a model of a node on another machine notices when the link between them is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fedgsp import channels
from fedgsp.channels import Channels, start_server
from fedgsp.messages import FailureCode, Source, SourceKind, Start
from fedgsp.model_service import ModelServicer
from fedgsp.model_store import ModelStore
from fedgsp.weights import WeightsError
from fedgsp_node import fetching
from fedgsp_node.fetching import Fetcher
from tests.support.callers import OPEN
from tests.support.fuzzing import soon, until
from tests.support.links import Link, link
from tests.support.weights import TENSORS, some_weights

LOST_AFTER_S = 0.6


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    """All hosts are other machines, and the connection for models never ends by itself."""
    monkeypatch.setattr(channels, "is_near", lambda host: False)
    monkeypatch.setattr(fetching, "is_near", lambda host: False)
    monkeypatch.setattr(channels, "PATIENCE", 1_000)


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
    kind: SourceKind = SourceKind.NODE, old: bool = False
) -> AsyncIterator[tuple[Holder, ModelStore, Link, asyncio.Task[Any]]]:
    """A node waits for a promised model over a link."""
    store = ModelStore()
    holder = Holder(store, old)
    server, address = await start_server("127.0.0.1:0", [holder.add_to], OPEN, lost_after_s=LOST_AFTER_S)
    try:
        async with link(address) as between, Channels(lost_after_s=LOST_AFTER_S, insecure=True) as dialled:
            fetcher = Fetcher(ModelStore(), dialled, TENSORS, "127.0.0.1")
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
