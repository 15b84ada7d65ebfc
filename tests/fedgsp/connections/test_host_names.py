"""Hosts whose names mean more than one address, of which the first never answers, or whose names are found slowly.

Behind a firewall that knows only IPv4, the IPv6 address of a host is silent. Where the first name server of a machine
is dead, each name takes five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.connections.liveness import MOST_DIAL_S
from fedgsp.connections.proxy import LOOK_UP_S, Proxy, SlowNamesError
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER
from fedgsp.security.tls_probe import probe
from tests.fedgsp.connections.test_channels_tls import echo
from tests.support.certificates import HERE, Authority, unchecked
from tests.support.clock import Clock
from tests.support.connect_proxy import connect_proxy
from tests.support.serving import serving

HOST = "top.example.test"
SILENT = "127.0.0.2"


@contextlib.contextmanager
def silent(port: int) -> Iterator[None]:
    """Nobody answers at this port of SILENT: its queue is full, so that Linux drops further attempts."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((SILENT, port))
        full.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((SILENT, port))
        yield


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """HOST has two addresses in the event loop of the test."""
    real = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def found(loop: asyncio.base_events.BaseEventLoop, host: str, port: int, **more: int) -> Any:
        if host != HOST:
            return await real(loop, host, port, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in (SILENT, "127.0.0.1")]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", found)


@pytest.mark.usefixtures("two_addresses")
async def test_a_server_is_found_at_the_next_address_of_its_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls, own = (unchecked(authority.issue(name, hosts=[*HERE, HOST])) for name in ("server", "client"))
    async with serving(echo, tls=tls) as served:
        port = int(served.address.rpartition(":")[2])
        with silent(port):
            assert (await probe(f"{HOST}:{port}", own, 5)).identity == TOP_SERVER


@pytest.mark.usefixtures("two_addresses")
async def test_a_proxy_is_found_at_the_next_address_of_its_host() -> None:
    async with serving(echo) as served, connect_proxy() as way:
        port = int(way.address.rpartition(":")[2])
        with silent(port):
            await Proxy(f"{HOST}:{port}").check(served.address, 5)
        assert way.opened == [served.address]


async def test_a_name_that_is_found_slowly_takes_no_time_from_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    async def found(*_: object, **__: object) -> Any:
        clock.advance(MOST_DIAL_S + 1)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with connect_proxy() as way, serving(echo) as served:
        port = int(way.address.rpartition(":")[2])
        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", found)
        _, writer = await Proxy(f"{HOST}:{port}").connect(served.address, MOST_DIAL_S)
        writer.close()
        await writer.wait_closed()


async def test_a_name_that_is_not_found_in_time_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock()

    async def silence(*_: object, **__: object) -> None:
        clock.advance(LOOK_UP_S + 1)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", silence)
    with pytest.raises(SlowNamesError):
        await probe(f"{HOST}:1", unchecked(Authority(tmp_path).issue("client")))
    with pytest.raises(
        PeerError, match=f"the name servers of this machine did not tell the address of {HOST}:1 in time"
    ):
        await Proxy(f"{HOST}:1").check("127.0.0.1:9", MOST_DIAL_S)
