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
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER, Identity, Role, node
from fedgsp.limits import calls, descriptors, gate
from fedgsp.limits.calls import ALLOWANCES
from fedgsp.messages import Constant, NodeMessage, TensorSpec
from fedgsp.security.access import RULES, AccessControl
from fedgsp.security.tickets import Door, Verb
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import (
    membership_pb2,
    membership_pb2_grpc,
    model_pb2,
)
from fedgsp.wire import MODULES
from tests.support.certificates import Authority, unchecked
from tests.support.fuzzing import path, say, until
from tests.support.hellos import hello, membership
from tests.support.holders import WEIGHTS
from tests.support.serving import Served, serving
from top_server.nodes.servicer import MOST_MAKING, MembershipServicer

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
        # One peer cannot keep out all others.
        assert ALLOWANCES[name].of_peer < ALLOWANCES[name].at_once or RULES[name].roles == {Role.TOP_SERVER}
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


async def joins(channel: grpc.aio.Channel, name: str) -> Any:
    call = channel.stream_stream(JOIN)()
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
        node = await joins(served.channel, "n0")
        assert members.nodes == 1
        node.cancel()


async def test_a_call_that_spoke_may_be_silent_where_silence_is_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with top_server() as (served, (members, _)):
        node = await joins(served.channel, "n0")
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
        node = await joins(served.channel, "n0")  # another RPC is not affected
        store.put("late", WEIGHTS)
        for call in waiting:
            await end_of(call)
        for _ in range(5):
            await end_of(await fetch())
        node.cancel()


@asynccontextmanager
async def with_certificates(authority: Authority) -> AsyncIterator[tuple[str, Any]]:
    """The address of a top server that takes the nodes of a CA, and its members."""
    members, _ = membership()
    top = unchecked(authority.issue("top"))
    access = AccessControl({Verb.JOIN: Door(b"")}, tls=True, without_ticket={Verb.JOIN})
    async with serving(MembershipServicer(members).add_to, tls=top, access=access) as served:
        yield served.address, members


@pytest.mark.parametrize("role", [Role.NODE, Role.WORKER])
async def test_one_certificate_keeps_no_other_node_out_and_the_log_names_it(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(ALLOWANCES, JOIN, replace(ALLOWANCES[JOIN], at_once=10, of_peer=10))
    authority = Authority(tmp_path)
    evil, honest = (
        unchecked(authority.issue(name, identity=who))
        for name, who in (("evil", Identity(role, "evil")), ("honest", node("honest")))
    )
    async with with_certificates(authority) as (address, members), Channels(evil) as many, Channels(honest) as one:
        channel = await many.to(address, TOP_SERVER)
        silent = [channel.stream_stream(JOIN)() for _ in range(20)]
        await until(lambda: sum(call.done() for call in silent) == 12)
        codes = {await call.code() for call in silent if call.done()}
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        own = await joins(await one.to(address, TOP_SERVER), "honest")
        assert members.nodes == 1
        for call in (*silent, own):
            call.cancel()
    told = [record.getMessage() for record in caplog.records if record.name == gate.__name__]
    assert told[0].startswith(f"refused {JOIN} from {role} evil: too many calls at once (it has 8 of the 8")
    assert len(told) == 1  # and not one for each


async def test_the_log_names_who_has_most_of_the_calls_when_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(ALLOWANCES, JOIN, replace(ALLOWANCES[JOIN], at_once=3))
    authority = Authority(tmp_path)
    files = {name: unchecked(authority.issue(name, identity=node(name))) for name in ("evil", "honest", "late")}
    async with contextlib.AsyncExitStack() as stack:
        address, _ = await stack.enter_async_context(with_certificates(authority))
        channels = {
            name: await (await stack.enter_async_context(Channels(tls))).to(address, TOP_SERVER)
            for name, tls in files.items()
        }
        calls_of_evil = [await makes(channels["evil"], "evil", client) for client in (1, 2)]
        own = await joins(channels["honest"], "honest")
        assert await code_of(channels["late"].stream_stream(JOIN)()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in (*calls_of_evil, own):
            call.cancel()
    told = [record.getMessage() for record in caplog.records if record.name == gate.__name__]
    more = "(it has 0 of the 3 that are open; most, 2, are of node evil)"
    assert told == [f"refused {JOIN} from node late: too many calls at once {more}"]


async def makes(channel: grpc.aio.Channel, name: str, client: int) -> Any:
    """A call of a node that is told to make the constants of its model, and does not."""
    call = channel.stream_stream(JOIN)()
    constants = (Constant(TensorSpec("body", "float32", (2,))),)
    await call.write(wire.encode(NodeMessage(hello(name, (client,), constants=constants))).SerializeToString())
    assert membership_pb2.TopServerMessage.FromString(await call.read()).HasField("make_constants")
    return call


async def test_of_one_name_few_calls_wait_before_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALLOWANCES, JOIN, replace(ALLOWANCES[JOIN], at_once=10, of_peer=10))
    async with top_server() as (served, (members, _)):
        waiting = []
        for _ in range(12):  # none has a certificate
            waiting.append(await makes(served.channel, "evil", 1))
            if len(waiting) > MOST_MAKING:
                assert await code_of(waiting[-1 - MOST_MAKING]) is grpc.StatusCode.ABORTED
        own = await joins(served.channel, "n0")
        assert members.nodes == 1
        for call in (*waiting, own):
            call.cancel()


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
        node = await joins(served.channel, "n0")
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
        "from fedgsp.processes import lifecycle\n"
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
