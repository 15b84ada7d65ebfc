"""A link between two processes: a proxy that delays bytes, and lets only so many pass per second.

All connections share the link. It has a queue, as a router has; when the queue is full, it reads no more. A proxy
hides the slow start of TCP over a long way, because each end speaks to the proxy, which is near.

    python -m benchmarks.performance.slow_link LISTEN HOST PORT RATE ROUND_TRIP_S [BYTES LATER_RATE]

A link may become slow: after so many bytes in one direction, that direction has the later rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from dataclasses import dataclass

#: Bytes that wait in the queue of the link.
QUEUE_BYTES = 1_000_000
_READ_BYTES = 64 * 1024


@dataclass(slots=True)
class Direction:
    """One direction of a link, with `rate` in bytes per second and `delay_s` from end to end."""

    rate: float
    delay_s: float
    #: After so many bytes, it has the rate that follows.
    until: float = math.inf
    later_rate: float = math.inf
    #: Loop time at which everything that came so far will have left.
    free_at: float = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries the bytes of one connection until it ends."""
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(self._arrive(on_the_way, writer))
        piece = max(1024, min(_READ_BYTES, int(min(self.rate, self.later_rate) / 100)))
        with contextlib.suppress(OSError):
            while data := await reader.read(piece):
                self.until -= len(data)
                if self.until <= 0:
                    self.rate, self.until = self.later_rate, math.inf
                self.free_at = max(loop.time(), self.free_at) + len(data) / self.rate
                on_the_way.put_nowait((self.free_at + self.delay_s, data))
                too_much_s = self.free_at - loop.time() - QUEUE_BYTES / self.rate
                if too_much_s > 0:
                    await asyncio.sleep(too_much_s)
        on_the_way.put_nowait((0.0, b""))
        await arriving

    async def _arrive(self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                at, data = await on_the_way.get()
                if not data:
                    break
                await asyncio.sleep(max(0.0, at - loop.time()))
                writer.write(data)
                await writer.drain()
        writer.close()


async def serve(listen: str, host: str, port: int, rate: float, round_trip_s: float, *later: float) -> None:
    """Carries every connection that comes at `listen` to host and port, and prints the port where it listens."""
    there, back = (Direction(rate, round_trip_s / 2, *later) for _ in range(2))

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, ask = await asyncio.open_connection(host, port)
        await asyncio.gather(there.carry(reader, ask), back.carry(answer, writer))

    server = await asyncio.start_server(carry, listen, 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    _listen, _host, _port, *_numbers = sys.argv[1:]
    asyncio.run(serve(_listen, _host, int(_port), *map(float, _numbers)))
