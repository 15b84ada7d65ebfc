"""A host with several addresses, of which the first never answers: IPv6 behind a firewall that knows only IPv4."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.identity import TOP_SERVER
from fedgsp.proxy import Proxy
from fedgsp.tls_probe import probe
from tests.fedgsp.test_channels_tls import echo
from tests.support.certificates import HERE, Authority, unchecked
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
