"""Callers that open calls and connections and say nothing, or more than one caller should: what is left for others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.limits import calls, descriptors, gate
from fedgsp.limits.calls import ALLOWANCES
from fedgsp.messages import NodeMessage
from fedgsp.model_service import ModelServicer
from fedgsp.model_store import ModelStore
from fedgsp.v1 import (
    membership_pb2,
    membership_pb2_grpc,
    model_pb2,
)
from fedgsp.wire import MODULES
from tests.support.fuzzing import path, say, until
from tests.support.hellos import hello, membership
from tests.support.holders import WEIGHTS
from tests.support.serving import Served, serving
from top_server.nodes.servicer import MembershipServicer

JOIN, FETCH = path("MembershipService", "Join"), path("ModelService", "Fetch")


def test_every_rpc_has_limits_and_a_kind_that_is_counted() -> None:
    rpcs = {
        f"/{service.full_name}/{method.name}": method
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(rpcs) == set(ALLOWANCES)
    for name, method in rpcs.items():
        kind = ALLOWANCES[name].message
        assert kind is None or kind is method.input_type
        assert ALLOWANCES[name].of_peer <= ALLOWANCES[name].at_once
    # The one service that reads bytes: `chunks` counts the items of a header.
    assert [name for name in rpcs if ALLOWANCES[name].message is None] == [path("ModelService", "Upload")]


@asynccontextmanager
async def top_server() -> AsyncIterator[tuple[Served, Any]]:
    members, _ = membership()
    store = ModelStore()

    def register(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(MembershipServicer(members), server)
        ModelServicer(store).add_to(server)

    async with serving(register) as served:
        yield served, (members, store)


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    code: grpc.StatusCode = await call.code()
    return code


async def joins(served: Served, name: str) -> Any:
    call = served.channel.stream_stream(JOIN)()
    await call.write(wire.encode(NodeMessage(hello(name))).SerializeToString())
    assert membership_pb2.TopServerMessage.FromString(await call.read()).HasField("welcome")
    return call


async def test_silent_calls_are_ended_and_leave_room_for_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "FIRST_MESSAGE_S", 0.7)  # in less, a busy machine does not begin all calls
    monkeypatch.setattr(calls, "MOST_SILENT_OF_PEER", 20)
    async with top_server() as (served, (members, _)):
        silent = [served.channel.stream_stream(rpc)() for _ in range(30) for rpc in (JOIN, FETCH)]
        codes = await asyncio.gather(*map(code_of, silent))
        # The deadline ends those that came first; the others are refused at once.
        assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 2 * 20  # of each RPC
        node = await joins(served, "n0")
        assert members.nodes == 1
        node.cancel()


async def test_a_call_that_spoke_may_be_silent_where_silence_is_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with top_server() as (served, (members, _)):
        node = await joins(served, "n0")
        monkeypatch.setattr(calls, "FIRST_MESSAGE_S", 0.02)
        other = served.channel.stream_stream(JOIN)()
        assert await code_of(other) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert members.nodes == 1
        assert not node.done()
        node.cancel()
        await until(lambda: members.nodes == 0)


async def test_a_peer_has_only_so_many_calls_and_ended_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALLOWANCES, FETCH, replace(ALLOWANCES[FETCH], of_peer=3))
    asked = model_pb2.FetchRequest(model_id="late").SerializeToString()
    async with top_server() as (served, (_, store)):

        async def fetch() -> Any:
            return await say(served.channel.stream_stream(FETCH)(), [asked], "silence")

        async def end_of(call: Any) -> None:
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

        waiting = [await fetch() for _ in range(3)]
        await until(lambda: len(store._waiting.get("late", ())) == 3)
        assert await code_of(await fetch()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        node = await joins(served, "n0")  # another RPC is not affected
        store.put("late", WEIGHTS)
        for call in waiting:
            await end_of(call)
        for _ in range(5):
            await end_of(await fetch())
        node.cancel()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:4711", "ipv4:10.0.0.1"),
        ("ipv6:[::1]:4711", "ipv6:[::1]"),
        ("ipv6:%5B::1%5D:4711", "ipv6:%5B::1%5D"),
        ("unix:/run/x", "unix:/run/x"),
        ("", ":"),
    ],
)
def test_calls_of_one_address_are_those_of_one_peer(peer: str, address: str) -> None:
    assert gate.address_of(peer) == address


async def test_silent_connections_leave_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "for_connections", lambda: 20)
    async with top_server() as (served, (members, _)):
        node = await joins(served, "n0")
        host, _, port = served.address.rpartition(":")
        before = open_files()
        with contextlib.ExitStack() as stack:
            loop = asyncio.get_running_loop()
            refused = 0
            silent = []
            for _ in range(100):
                one = stack.enter_context(socket.socket())
                one.setblocking(False)
                await loop.sock_connect(one, (host, int(port)))
                silent.append(one)
            for one in silent:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    # A refused connection ends at once; one that was taken hears the server's settings.
                    refused += await asyncio.wait_for(loop.sock_recv(one, 1), 0.02) == b""
            assert refused >= 80
            # The sockets of this test are in the same process.
            assert open_files() - before - len(silent) <= 20
            assert not node.done()
            assert members.nodes == 1
        node.cancel()


def open_files() -> int:

    return len(os.listdir("/proc/self/fd"))


def test_a_process_opens_as_many_files_as_the_system_allows() -> None:
    script = (
        "import resource, asyncio\n"
        "from fedgsp import lifecycle\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "lifecycle.run(asyncio.sleep(0))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert ended.stdout == "True\n", ended.stderr


def test_connections_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in (
        (1024, 1024 - descriptors.RESERVED),
        (100, descriptors.LEAST),
        (resource.RLIM_INFINITY, 1 << 20),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert descriptors.for_connections() == most
