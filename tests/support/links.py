"""A link that tests cut: a TCP proxy between a process and the address that it dials."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from fedgsp.connections.addresses import split_address


@dataclass(eq=False)
class _Flow:
    """A connection in both directions."""

    writers: list[asyncio.StreamWriter]
    moved: float
    forgotten: bool = False


@dataclass(eq=False)
class Link:
    """A link to an address; others dial `address` instead."""

    to: str
    address: str = ""
    #: A middlebox on the link forgets connections that were idle for so many seconds: their bytes go nowhere.
    idle_s: float = math.inf
    connections: int = 0
    forgotten: int = 0
    _passed: int = 0
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _whole: asyncio.Event = field(default_factory=asyncio.Event)
    _flows: set[_Flow] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def cut(self) -> None:
        """From now on nothing passes, and nobody is told. What is sent meanwhile passes when the link is mended."""
        self._whole.clear()

    def mend(self) -> None:
        """The link works again."""
        self._whole.set()

    def reset(self) -> None:
        """Ends all connections; both ends notice at once."""
        for flow in list(self._flows):
            for writer in flow.writers:
                writer.transport.abort()

    async def passed(self, chunks: int) -> None:
        """Waits until so many more pieces of bytes have passed."""
        wanted = self._passed + chunks
        while self._passed < wanted:
            await self._more.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection."""
        self.connections += 1
        host, port = split_address(self.to)
        await self._whole.wait()
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        flow = _Flow([writer, back], asyncio.get_running_loop().time())
        self._flows.add(flow)
        await asyncio.gather(self._pump(flow, reader, back), self._pump(flow, there, writer))
        self._flows.discard(flow)

    async def _pump(self, flow: _Flow, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._whole.wait()
                if loop.time() - flow.moved > self.idle_s and not flow.forgotten:
                    flow.forgotten = True
                    self.forgotten += 1
                flow.moved = loop.time()
                if not flow.forgotten:
                    writer.write(data)
                    await writer.drain()
                    self._passed += 1
                    self._more.set()
                    self._more = asyncio.Event()
        if not flow.forgotten:
            writer.transport.abort()


@asynccontextmanager
async def link(to: str, idle_s: float = math.inf) -> AsyncIterator[Link]:
    """A link that works until it is cut."""
    made = Link(to, idle_s=idle_s)
    made.mend()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        made._tasks.add(task)
        try:
            with suppress(asyncio.CancelledError):  # streams of asyncio log it
                await made.serve(reader, writer)
        finally:
            writer.transport.abort()
            made._tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.reset()
        for task in list(made._tasks):
            task.cancel()
        await asyncio.gather(*made._tasks, return_exceptions=True)
