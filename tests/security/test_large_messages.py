"""A caller with many large messages delays itself, not others, and the memory for messages that wait is limited."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from fedgsp import wire
from fedgsp.limits import conversions
from fedgsp.limits.conversions import LARGE_BYTES, TooManyError, by_size, waiting
from fedgsp.messages import HostedClient, NodeMessage
from fedgsp.v1 import membership_pb2, membership_pb2_grpc
from tests.support.fuzzing import SOON_S, path, soon, until
from tests.support.hellos import hello, membership
from tests.support.scripted import let_others_run
from tests.support.serving import serving
from top_server.nodes.servicer import MembershipServicer

JOIN = path("MembershipService", "Join")


@asynccontextmanager
async def busy_thread() -> AsyncIterator[None]:
    """The thread that converts large messages has other work, until the end of the block."""
    async with conversions._turns.setdefault(None, asyncio.Lock()):
        yield


async def test_a_peer_has_one_message_at_a_time_in_the_queue() -> None:
    order: list[str] = []
    async with busy_thread():
        names = ["evil"] * 20 + ["honest"] + ["evil"] * 20
        tasks = [asyncio.create_task(by_size(name, LARGE_BYTES + 1, order.append, name)) for name in names]
        await asyncio.sleep(0)  # all of them wait now
    await soon(asyncio.gather(*tasks))
    assert sorted(order[:2]) == ["evil", "honest"]
    assert order.count("evil") == 40


async def test_callers_that_hang_up_keep_no_second_message_in_the_queue() -> None:
    order: list[str] = []
    async with busy_thread():
        for number in range(20):
            task = asyncio.create_task(by_size("evil", LARGE_BYTES + 1, order.append, f"evil-{number}"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        honest = asyncio.create_task(by_size("honest", LARGE_BYTES + 1, order.append, "honest"))
        await asyncio.sleep(0)
    await soon(honest)
    assert order == ["honest"]


async def test_a_caller_that_hangs_up_leaves_no_thread_at_work_beside_the_next_one() -> None:
    began, go, order = threading.Event(), threading.Event(), [""]

    def convert() -> None:
        began.set()
        assert go.wait(SOON_S)
        order.append("evil")

    evil = asyncio.create_task(by_size("evil", LARGE_BYTES + 1, convert))
    await until(began.is_set)
    evil.cancel()
    honest = asyncio.create_task(by_size("honest", LARGE_BYTES + 1, order.append, "honest"))
    await let_others_run()
    assert not evil.done()
    assert not honest.done()
    go.set()
    await soon(honest)
    assert order == ["", "evil", "honest"]
    assert evil.cancelled()


def test_no_thread_of_conversions_holds_up_the_end_of_a_process() -> None:
    """`lifecycle.leave` waits for threads that are at work."""
    code = (
        "from fedgsp.processes import lifecycle\n"
        "from fedgsp.limits.conversions import LARGE_BYTES, by_size\n"
        "async def main(): await by_size('p', LARGE_BYTES + 1, len, 'abc')\n"
        "lifecycle.leave(lifecycle.run(main()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_bytes_that_wait_are_limited_for_each_peer_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "MOST_WAITING_OF_PEER", 250_000)
    monkeypatch.setattr(conversions, "MOST_WAITING", 400_000)
    with waiting("evil", 200_000):
        with pytest.raises(TooManyError), waiting("evil", 100_000):
            pass
        with waiting("evil", 10), waiting("honest", 200_000), pytest.raises(TooManyError), waiting("third", 100_000):
            pass
    with waiting("evil", 250_000):
        assert conversions._waiting["evil"] == 250_000
    assert not conversions._waiting["evil"]
    assert not conversions._waiting[None]


async def test_a_flood_of_large_hellos_is_refused_and_small_ones_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = tuple(HostedClient(number, 100, 10) for number in range(5_000))
    large = bytes(wire.encode(NodeMessage(replace(hello("evil"), clients=clients))).SerializeToString())
    monkeypatch.setattr(conversions, "MOST_WAITING_OF_PEER", 3 * len(large))
    members, _ = membership()

    def register(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(MembershipServicer(members), server)

    async with serving(register) as served, asyncio.timeout(SOON_S):
        async with busy_thread():
            flood = [served.channel.stream_stream(JOIN)() for _ in range(8)]
            for call in flood:
                await call.write(large)
            await until(lambda: sum(call.done() for call in flood) == 5)
            for call in flood:
                if call.done():
                    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            honest = served.channel.stream_stream(JOIN)()
            await honest.write(wire.encode(NodeMessage(hello("honest"))).SerializeToString())
            assert membership_pb2.TopServerMessage.FromString(await honest.read()).HasField("welcome")
        for call in (*flood, honest):
            call.cancel()
