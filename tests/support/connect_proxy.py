"""A small HTTP proxy with CONNECT. It notes what it opens, may want a password, and refuses what it is told to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """`hosts` are names that this proxy alone knows; `refusals` are statuses by host:port, "" for all others."""

    user: str = ""
    password: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)
    address: str = ""
    #: host:port of each connection that was opened.
    opened: list[str] = field(default_factory=list)
    #: host:port and status of each refusal.
    refused: list[tuple[str, int]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split(maxsplit=2)
        status = self._status(method, target, headers[0])
        if status != 200:
            self.refused.append((target, status))
            writer.write(f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        host, _, port = target.rpartition(":")
        there, away = await asyncio.open_connection(self.hosts.get(host, host), int(port))
        self.opened.append(target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.wait(
                [asyncio.ensure_future(_copied(reader, away)), asyncio.ensure_future(_copied(there, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            away.transport.abort()

    def _status(self, method: str, target: str, headers: str) -> int:
        proof = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if method != "CONNECT":
            return 405
        if self.user and f"Proxy-Authorization: Basic {proof}\r\n" not in headers:
            return 407
        return self.refusals.get(target, self.refusals.get("", 200))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def connect_proxy(**settings: object) -> AsyncIterator[ConnectProxy]:
    """A proxy on loopback while the body runs."""
    proxy = ConnectProxy(**settings)  # type: ignore[arg-type]
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
