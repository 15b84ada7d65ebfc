"""Whatever strangers send, again and again, no handler keeps any of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import Describe, Evaluate, NodeMessage, Order, OrderKey, Release, SendUp, Train
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc, membership_pb2_grpc
from tests.support.blobs_task import Blobs
from tests.support.fuzzing import heard, path, say, soon, until
from tests.support.hellos import hello, membership
from tests.support.holders import BYTES, data, header, serving_store
from tests.support.real_manager import ATTACH, REPORTS, manager, node, request
from tests.support.serving import serving
from top_server.grouping_service import GroupingServicer
from top_server.nodes.servicer import MembershipServicer

#: A kilobyte a time would show; a call that still ends does not.
TIMES, MOST_GROWN = 120, 120_000
#: Bytes by which memory may change between two looks, and still count as steady.
STEADY = 4096
Once = Callable[[], Awaitable[object]]
UNREADABLE, LONG = b"\xff\xff", b"x" * 2000


async def settled() -> int:
    """The traced memory once it does not change any more: threads of gRPC end calls a moment later."""
    before, now = 0, 1 << 40
    while abs(now - before) > STEADY:
        await asyncio.sleep(0.05)
        gc.collect()
        before, now = now, tracemalloc.get_traced_memory()[0]
    return now


async def grown(once: Once) -> int:
    """Bytes that are there after so many times, and were not after half as many: what is kept for a while is both."""

    async def after_many() -> int:
        for _ in range(TIMES):
            await once()
        return await settled()

    logging.disable()  # pytest keeps what is logged
    tracemalloc.start()
    try:
        return -await after_many() + await after_many()
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)


@asynccontextmanager
async def uploads() -> AsyncIterator[Once]:
    store = ModelStore()
    bad = [header().SerializeToString(), data(BYTES).SerializeToString(), data(b"!").SerializeToString()]
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: 1 << 20) as served:
        call = served.channel.stream_stream(path("ModelService", "Upload"))

        async def once() -> None:
            with pytest.raises(grpc.aio.AioRpcError):
                await (await say(call(), bad, "end")).read()

        yield once
    assert len(store) == 0


@asynccontextmanager
async def fetches() -> AsyncIterator[Once]:
    async with manager() as m:
        fetch = m.channel.unary_stream(path("ModelService", "Fetch"))
        yield lambda: heard(fetch(b"\n\xd0\x0f" + LONG), 5.0)
        assert not m.store._waiting


@asynccontextmanager
async def joins() -> AsyncIterator[Once]:
    members, recorder = membership()
    servicer = MembershipServicer(members)
    number = iter(range(10_000))

    async def once() -> None:
        join = serve.channel.stream_stream(path("MembershipService", "Join"))
        name = f"n{next(number)}" + LONG.decode()
        for said in (hello(node=name, task="x" * 2000), hello(node=name, clients=()), hello(node=name)):
            call = await say(join(), [wire.encode(NodeMessage(said)).SerializeToString()], "silence")
            assert await soon(call.read())
            call.cancel()
        await until(lambda: not members.nodes)
        recorder.events.clear()

    async with serving(
        lambda server: membership_pb2_grpc.add_MembershipServiceServicer_to_server(servicer, server)
    ) as serve:
        yield once
    assert not members._left


@asynccontextmanager
async def attached() -> AsyncIterator[Once]:
    """A node of one name that reports what nobody asked for, and goes."""
    said = [report.SerializeToString() for report in REPORTS] + [UNREADABLE]
    async with manager() as m:

        async def once() -> None:
            await heard(await say(m.channel.stream_stream(ATTACH)(), said, "end"), 5.0)
            await until(lambda: not m.members._sessions)

        yield once


@asynccontextmanager
async def groups() -> AsyncIterator[Once]:
    """Requests that are refused, that cannot be read, and that end without a member."""
    async with manager() as m:
        run_group = m.channel.unary_stream(path("GroupService", "RunGroup"))
        asked = [request("nonsense"), request("relay", members=(), start_address=m.top_address)]
        messages = [UNREADABLE, *(wire.encode(one).SerializeToString() for one in asked)]

        async def once() -> None:
            for message in messages:
                await heard(run_group(message), 5.0)

        yield once
        assert not m.groups._groups


@asynccontextmanager
async def forgets() -> AsyncIterator[Once]:
    async with manager() as m:
        forget = m.channel.unary_unary(path("GroupService", "Forget"))
        message = wire.encode(Release((LONG.decode(), "m"))).SerializeToString()
        yield lambda: soon(forget(message))


@asynccontextmanager
async def orders() -> AsyncIterator[Once]:
    """A node remembers what it answered last, and no more."""
    number = iter(range(1, 100_000))
    async with manager() as m, node(m, "n0", Blobs()) as store:

        async def once() -> None:
            tickets = []
            for work in (Train(None, "made", None), Evaluate(None), SendUp("x", earlier=True), Describe()):
                key = OrderKey(next(number), "train", 0, 0, 0, "run")
                tickets.append(m.members.submit("n0", Order(key, 99, work)))
            other = OrderKey(1, "train", 0, next(number), 0, "another run")
            tickets.append(m.members.submit("n0", Order(other, 0, Describe())))
            for ticket in tickets:
                assert await soon(m.members.outcome(ticket, 5.0)) is not None

        for _ in range(60):
            await once()
        yield once
        store.release(["made"])
        assert not store._waiting


@asynccontextmanager
async def questions() -> AsyncIterator[Once]:
    servicer = GroupingServicer()
    bad = grouping_pb2.AssignRequest(
        question=grouping_pb2.AssignQuestion(grouping="nonsense" + LONG.decode(), clients=range(50))
    )
    rows = grouping_pb2.AssignRequest(rows=grouping_pb2.MatrixRows(name="gram", data=LONG))

    async with serving(
        lambda server: grouping_pb2_grpc.add_GroupingServiceServicer_to_server(servicer, server)
    ) as served:
        ask = served.channel.stream_unary(path("GroupingService", "Assign"))

        async def once() -> None:
            with pytest.raises(grpc.aio.AioRpcError):
                await (await say(ask(), [bad.SerializeToString(), rows.SerializeToString()], "end"))

        yield once


HANDLERS = {
    handler.__name__: handler for handler in (uploads, fetches, joins, attached, groups, forgets, orders, questions)
}


#: The calls of strangers and of nodes that hold most; the others are played on demand.
ALWAYS = ("uploads", "joins", "orders")


@pytest.mark.parametrize(
    "handler", [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.slow]) for name in HANDLERS]
)
async def test_nothing_of_what_strangers_send_is_kept(handler: str) -> None:
    async with HANDLERS[handler]() as once:
        assert await grown(once) < MOST_GROWN


def test_a_handler_that_keeps_what_it_is_sent_would_be_found() -> None:
    kept: list[bytes] = []

    async def once() -> None:
        kept.append(bytes(LONG) + b"!")

    assert asyncio.run(grown(once)) > MOST_GROWN
