"""What the receiver of a model tells its sender while the bytes come."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from fedgsp.transfers import chunks
from fedgsp.v1 import model_pb2

#: Seconds between two signs of life. gRPC sends a ping only after a third of `--lost-after`, which is more.
SIGN_S = 0.25
#: What gRPC raises for a message of a call that has ended, at a client and at a server.
ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class Answers:
    """Receipts of what came, and signs of life from the header of the model to its end.

    On a link that is slow or loses packets, a chunk takes seconds. A sender that hears nothing for so long sends a
    ping. The ping waits behind the bytes that are on their way, so the sender would take the receiver for lost.
    """

    def __init__(self, write: Callable[[model_pb2.Receipt], Awaitable[None]]) -> None:
        """`write` sends a message to the sender, and raises one of ENDED once the call has ended."""
        self._write = write
        self._one_by_one = asyncio.Lock()
        self._signs: asyncio.Task[None] | None = None
        self._over = False

    def begin(self) -> None:
        """A model comes: give signs of life from now on."""
        self._signs = self._signs or asyncio.create_task(self._give_signs(), name="give signs of life")

    async def receipt(self, base: int | None) -> None:
        """Confirms a chunk, chooses a base, or refuses (None) a pipe or a code."""
        await self._say(chunks.receipt(base))

    def close(self) -> None:
        """The transfer is over. A sign that is being written is written to its end, because gRPC needs that."""
        self._over = True
        if self._signs is not None and not self._one_by_one.locked():
            self._signs.cancel()

    async def _give_signs(self) -> None:
        with contextlib.suppress(*ENDED):
            while not self._over:
                await asyncio.sleep(SIGN_S)
                await self._say(model_pb2.Receipt(waiting=True))

    async def _say(self, message: model_pb2.Receipt) -> None:
        async with self._one_by_one:
            await self._write(message)
