"""Real gRPC servers and channels inside the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from fedgsp.connections.channels import Channels, start_server
from fedgsp.identity import TOP_SERVER, Identity
from fedgsp.security.access import AccessControl
from fedgsp.security.tls import Tls
from tests.support.callers import OPEN


@dataclass(frozen=True)
class Served:
    """A server that runs, and a channel to it."""

    server: grpc.aio.Server
    address: str
    channel: grpc.aio.Channel


@asynccontextmanager
async def serving(
    *register: Callable[[grpc.aio.Server], None],
    tls: Tls | None = None,
    access: AccessControl = OPEN,
    who: Identity = TOP_SERVER,
) -> AsyncIterator[Served]:
    """A server with these services on a port of its own; it and its channel end with the block."""
    server, address = await start_server("127.0.0.1:0", register, access, tls)
    try:
        async with Channels(tls) as channels:
            yield Served(server, address, await channels.to(address, who))
    finally:
        await server.stop(None)


@asynccontextmanager
async def nobody() -> AsyncIterator[Served]:
    """An address where nobody listens any more."""
    async with serving() as served:
        await served.server.stop(None)
        yield served
