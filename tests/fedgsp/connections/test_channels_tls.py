"""What two processes say when one of them is not who the other wants: always at once, and always what it is about."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import Channels, describe, start_server
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER, manager, node
from fedgsp.security.tls import Tls
from tests.support.callers import OPEN
from tests.support.certificates import SERVERS, Authority, unchecked
from tests.support.serving import serving

#: Hosts that are not the machine's own: a certificate for them does not cover where it is dialled.
ELSEWHERE = ["198.51.100.1", "elsewhere.example.org"]


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no annotations
    def service(self, _: Any) -> Any:
        async def echo(request: bytes, _: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


def echo(server: grpc.aio.Server) -> None:
    server.add_generic_rpc_handlers((Echo(),))


async def said(channel: grpc.aio.Channel) -> bytes:
    answer: bytes = await channel.unary_unary("/test/Echo")(b"hello", timeout=10)
    return answer


async def failure(dialled: Tls | None, dials: Tls | None) -> str:
    """What a client hears of a server that it cannot speak with."""
    server, address = await start_server("127.0.0.1:0", [echo], OPEN, dialled)
    try:
        async with Channels(dials) as channels:
            with pytest.raises((PeerError, grpc.aio.AioRpcError)) as caught:
                await said(await channels.to(address, TOP_SERVER))
    finally:
        await server.stop(None)
    return describe(caught.value) if isinstance(caught.value, grpc.aio.AioRpcError) else str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "*"])
async def test_holders_of_certificates_speak_at_every_host_they_cover(tmp_path: Path, host: str) -> None:
    authority = Authority(tmp_path)
    server, address = await start_server(f"{host}:0", [echo], OPEN, unchecked(authority.issue("server")))
    try:
        async with Channels(unchecked(authority.issue("client", hosts=ELSEWHERE))) as channels:
            assert await said(await channels.to(address, TOP_SERVER)) == b"hello"
            assert await said(await channels.to(f"localhost:{split_address(address)[1]}", TOP_SERVER)) == b"hello"
            await channels.drop(address)
            assert await said(await channels.to(address, TOP_SERVER)) == b"hello"
    finally:
        await server.stop(None)


async def test_a_server_that_is_not_who_it_should_be_is_not_spoken_with(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = unchecked(authority.issue("client"))
    for server, why in (
        (None, "it does not use TLS"),
        (Authority(tmp_path, "foreign").issue(), "its certificate was not issued by the CA that this process trusts"),
        (authority.issue("old", days=-1), "its certificate has expired"),
        (authority.issue("other", hosts=ELSEWHERE), "its certificate does not cover the host name used for it"),
    ):
        assert why in await failure(unchecked(server) if server else None, client)


async def test_a_client_that_is_not_of_the_ca_is_not_served(tmp_path: Path) -> None:
    authority, foreign = Authority(tmp_path), Authority(tmp_path, "foreign")
    server = unchecked(authority.issue("server"))
    stranger = foreign.issue()
    stranger.ca.write_bytes(authority.ca.read_bytes())  # it believes the server, which does not believe it
    for client in (
        None,
        unchecked(stranger),
        unchecked(authority.issue("for servers", usage=SERVERS)),
    ):
        told = await failure(server, client)
        assert "it closed the connection at once; perhaps it requires TLS, or by its clock the certificate" in told


async def test_a_client_whose_certificate_has_expired_is_not_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old = unchecked(authority.issue("old", days=-1))
    async with serving(echo, tls=unchecked(authority.issue("server"))) as served:
        credentials = grpc.ssl_channel_credentials(old.ca, old.key, old.cert)
        async with grpc.aio.secure_channel(served.address, credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await said(channel)
        assert "it closed the connection at once" in describe(caught.value)


async def test_a_process_tells_that_its_own_certificate_has_expired_until_it_has_a_new_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = unchecked(authority.issue("client", days=-1))
    own = dataclasses.replace(own, identity=TOP_SERVER, versions=own.files.versions())
    server = unchecked(authority.issue("server"))
    async with serving(echo, tls=server, who=TOP_SERVER) as served, Channels(own) as channels:
        for _ in range(2):
            with pytest.raises(PeerError, match=f"{own.files.cert} has expired; put a new one in its place"):
                await channels.to(served.address, TOP_SERVER)
        authority.issue("client")
        assert await said(await channels.to(served.address, TOP_SERVER)) == b"hello"


async def test_a_client_without_a_certificate_is_not_served(tmp_path: Path) -> None:
    tls = unchecked(Authority(tmp_path).issue())
    async with serving(echo, tls=tls) as served:
        async with grpc.aio.secure_channel(served.address, grpc.ssl_channel_credentials(tls.ca)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await said(channel)
        assert "it closed the connection at once" in describe(caught.value)
        assert await asyncio.wait_for(said(served.channel), 10) == b"hello"


async def test_a_server_that_returns_with_a_new_certificate_is_checked_and_spoken_with_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, address = await start_server("127.0.0.1:0", [echo], OPEN, unchecked(authority.issue("old")))
    async with Channels(unchecked(authority.issue("client"))) as channels:
        assert await said(await channels.to(address, TOP_SERVER)) == b"hello"
        await first.stop(None)
        second, _ = await start_server(address, [echo], OPEN, unchecked(authority.issue("new")))
        try:
            with pytest.raises(grpc.aio.AioRpcError):  # the channel still trusts the old certificate alone
                await said(await channels.to(address, TOP_SERVER))
            assert await said(await channels.to(address, TOP_SERVER)) == b"hello"
        finally:
            await second.stop(None)


async def test_a_server_that_is_another_process_than_expected_is_not_spoken_with(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = unchecked(authority.issue("node", identity=node("hospital-a")))
    async with serving(echo, tls=tls, who=node("hospital-a")) as served, Channels(tls) as channels:
        assert await said(await channels.to(served.address, node("hospital-a"))) == b"hello"
    async with serving(echo, tls=tls, who=node("hospital-a")) as served, Channels(tls) as channels:
        for other in (TOP_SERVER, node("hospital-b"), manager("hospital-a")):
            with pytest.raises(PeerError, match=f"is that of node hospital-a, not of {other}"):
                await channels.to(served.address, other)
