from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import Channels, describe, refuse, start_server
from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER
from tests.support.callers import OPEN
from tests.support.serving import nobody, serving
from tests.support.wall import wall


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as found:
            found.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no annotations
    """Answers every call with its own bytes, or as told."""

    def __init__(self, answer: Callable[[bytes, Any], Any] | None = None) -> None:
        self._answer = answer

    def service(self, handler_call_details: Any) -> Any:
        async def echo(request: bytes, context: Any) -> bytes:
            if self._answer is not None:
                await self._answer(request, context)
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


def echo(server: grpc.aio.Server) -> None:
    server.add_generic_rpc_handlers((Echo(),))


async def said(channel: grpc.aio.Channel, message: bytes = b"hello") -> bytes:
    answer: bytes = await channel.unary_unary("/test/Echo")(message, timeout=10)
    return answer


async def test_port_0_is_a_port_of_its_own_and_is_told() -> None:
    async with serving(echo) as first, serving(echo) as second:
        assert first.address.startswith("127.0.0.1:")
        assert first.address != second.address
        assert await said(first.channel) == b"hello"


async def test_a_port_in_use_is_refused() -> None:
    async with serving(echo) as served:
        with pytest.raises(ConfigError, match=f"cannot listen on {served.address}") as caught:
            await start_server(served.address, [echo], OPEN)
        assert "in use" in caught.value.remedy
        assert await said(served.channel) == b"hello"


async def test_a_port_that_another_program_has_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            await start_server(f"127.0.0.1:{other.getsockname()[1]}", [], OPEN)


@needs_ipv6
@pytest.mark.parametrize("taken", ["127.0.0.1", "[::1]"])
async def test_a_name_is_refused_if_one_of_its_addresses_is_in_use(taken: str) -> None:
    server, address = await start_server(f"{taken}:0", [], OPEN)
    try:
        port = split_address(address)[1]
        with pytest.raises(ConfigError, match=f"cannot listen on localhost:{port}"):
            await start_server(f"localhost:{port}", [], OPEN)
    finally:
        await server.stop(None)


async def test_an_address_of_a_name_that_this_machine_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(*_: Any, **__: Any) -> Any:
        return [(None, None, 6, "", (address, 0)) for address in ("192.0.2.1", "127.0.0.1", "2001:db8::1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    server, address = await start_server("node.example.org:0", [echo], OPEN, insecure=True)
    try:
        host, port = split_address(address)
        assert host == "node.example.org"
        async with Channels() as channels:
            assert await said(await channels.to(f"127.0.0.1:{port}", TOP_SERVER)) == b"hello"
    finally:
        await server.stop(None)


@needs_ipv6
async def test_all_addresses_of_a_name_have_the_same_port() -> None:
    server, address = await start_server("localhost:0", [echo], OPEN)
    try:
        async with Channels() as channels:
            for host in ("127.0.0.1", "[::1]"):
                assert await said(await channels.to(f"{host}:{split_address(address)[1]}", TOP_SERVER)) == b"hello"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]", "nobody.invalid", "a" * 64])
async def test_a_host_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        await start_server(f"{host}:0", [], OPEN, insecure=True)


async def test_a_mistaken_address_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        await start_server("localhost", [], OPEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "localhost", "[::]"])
async def test_a_server_on_every_interface_is_reached_by_this_machine(host: str) -> None:
    server, address = await start_server(f"{host}:0", [echo], OPEN, insecure=True)
    try:
        bound, port = split_address(address)
        assert bound == host
        async with Channels() as channels:
            assert await said(await channels.to(f"127.0.0.1:{port}", TOP_SERVER)) == b"hello"
    finally:
        await server.stop(None)


@needs_ipv6
async def test_ipv6_hosts_stand_in_brackets() -> None:
    server, address = await start_server("[::1]:0", [echo], OPEN)
    try:
        assert address.startswith("[::1]:")
        async with Channels() as channels:
            assert await said(await channels.to(address, TOP_SERVER)) == b"hello"
    finally:
        await server.stop(None)


async def test_an_address_has_one_channel_until_it_is_dropped() -> None:
    async with serving(echo) as served, Channels() as channels:
        channel = await channels.to(served.address, TOP_SERVER)
        assert await channels.to(served.address, TOP_SERVER) is channel
        await channels.drop(served.address)
        await channels.drop(served.address)
        again = await channels.to(served.address, TOP_SERVER)
        assert again is not channel
        assert await said(again) == b"hello"
        with pytest.raises(grpc.aio.UsageError):
            await said(channel)


@pytest.mark.parametrize("frozen", ["before it was dialled", "while it works"])
async def test_a_server_that_falls_silent_is_gone(frozen: str) -> None:
    """Its connections stay open, as those of a process that was stopped do; gRPC alone waits for 20 s and more."""
    began = asyncio.Event()

    async def work(request: bytes, context: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((Echo(work),))

    async with serving(register) as served, wall(served.address) as front, Channels(lost_after_s=1.0) as channels:
        front.silent = frozen == "before it was dialled"
        call = (await channels.to(front.address, TOP_SERVER)).unary_unary("/test/Echo")(b"")
        if not front.silent:
            await began.wait()
            front.silent = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(15):
                await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_channels_close_together() -> None:
    async with serving(echo) as first, serving(echo) as second:
        async with Channels() as channels:
            opened = [await channels.to(served.address, TOP_SERVER) for served in (first, second)]
        for channel in opened:
            assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_a_message_larger_than_allowed_is_refused_by_its_receiver() -> None:
    async with serving(echo) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await said(served.channel, bytes(5 * 1024 * 1024))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_refusal_carries_its_reason_to_the_caller() -> None:
    async def refuse_it(_: bytes, context: grpc.aio.ServicerContext) -> None:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "no\nsecond line")

    async with serving(lambda server: server.add_generic_rpc_handlers((Echo(refuse_it),))) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await said(served.channel)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert describe(caught.value) == "INVALID_ARGUMENT: no"


async def test_a_refusal_too_long_for_its_message_is_cut() -> None:
    """Names that a peer chose stand in the reasons; gRPC drops a whole answer whose status is too long."""

    async def refuse_it(_: bytes, context: grpc.aio.ServicerContext) -> None:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "n" * 100_000)

    async with serving(lambda server: server.add_generic_rpc_handlers((Echo(refuse_it),))) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await said(served.channel)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith("nnn")


async def test_an_error_without_details_is_its_code() -> None:
    async def refuse_it(_: bytes, context: grpc.aio.ServicerContext) -> None:
        await refuse(context, grpc.StatusCode.NOT_FOUND, "")

    async with serving(lambda server: server.add_generic_rpc_handlers((Echo(refuse_it),))) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await said(served.channel)
    assert describe(caught.value) == "NOT_FOUND"


async def test_nobody_at_an_address_is_told_at_once() -> None:
    async with nobody() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await said(served.channel)
    assert describe(caught.value) == f"nothing listens at {served.address}"
