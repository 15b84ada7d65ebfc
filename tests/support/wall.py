"""A way to a server that can be thin, or fall silent as one does whose process is stopped: connections stay open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fedgsp.connections.addresses import split_address


class Wall:
    """Passes bytes on, both ways, until it is `silent`; so many a second, if there is a rate."""

    def __init__(self, behind: str, rate: float | None) -> None:
        self._rate = rate
        self._behind = split_address(behind)
        self._ends: list[asyncio.StreamWriter] = []
        self._passing: set[asyncio.Task[Any]] = set()
        self.address = ""
        self.silent = False

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.append(writer)
        taking = asyncio.current_task()
        assert taking is not None
        self._passing.add(taking)
        there = await asyncio.open_connection(*self._behind)
        self._ends.append(there[1])
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._passing.add(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(8192):
                if self._rate is not None:
                    await sink.drain()
                    await asyncio.sleep(len(piece) / self._rate)
                if not self.silent:
                    sink.write(piece)

    async def close(self) -> None:
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)
        for end in self._ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)


@contextlib.asynccontextmanager
async def wall(behind: str, rate: float | None = None) -> AsyncIterator[Wall]:
    """In front of a server, at an address of its own."""
    found = Wall(behind, rate)
    async with await asyncio.start_server(found.take, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        found.address = f"{host}:{port}"
        try:
            yield found
        finally:
            server.close()
            for _ in range(5):  # turns of the loop, in which a connection that was just accepted is taken
                await asyncio.sleep(0)
            await found.close()
