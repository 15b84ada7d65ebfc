"""The updates that clients revealed last, and which of them came in this round."""

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

from numpy.typing import NDArray

from fedgsp.messages import Failure, TensorSpec
from fedgsp.tensors.updates import LENGTH_BYTES, trainable_size
from fedgsp.tensors.weights import Weights, total_bytes
from top_server.reveals.spool import SketchSpool, UpdateSpool


class Reveals(Protocol):
    """Where the updates go that clients reveal while they train."""

    @property
    def max_bytes(self) -> int:
        """Largest size in bytes of an update that is accepted."""

    def came(self, client: int) -> bool:
        """Whether the update of a client came in this round."""

    async def take(self, client: int, shown: Weights | Failure) -> str:
        """Keeps what a client revealed, in place of its earlier update; returns why it cannot be used, or ""."""

    async def round_over(self, trained: Collection[int]) -> None:
        """Forgets what other clients revealed in this round: their training is in no result."""


class Updates:
    """Updates of `length` numbers each, all of the same view."""

    def __init__(self, spool: UpdateSpool | SketchSpool, length: int, max_bytes: int) -> None:
        self.spool = spool
        self.max_bytes = max_bytes
        #: Held while the spool is used, because only one thread may use it at a time.
        self.lock = asyncio.Lock()
        #: The round in which the updates were revealed that come now.
        self.round = 1
        self.length = length
        #: Client -> the round of its update, for clients that have one.
        self.rounds: dict[int, int] = {}

    async def take(self, client: int, shown: Weights | Failure) -> str:
        """Keeps what a client revealed; returns why it cannot be used (the client then has none), or ""."""
        async with self.lock:
            problem = str(shown) if isinstance(shown, Failure) else await asyncio.to_thread(self.put, client, shown)
            if problem:
                self.forget(client)
        return problem

    def put(self, client: int, shown: Weights) -> str:
        """Keeps the vector that a client revealed; returns why it cannot be used, or ""."""
        vector: NDArray[Any] | None = shown.arrays.get("update")
        if vector is None or len(shown.arrays) != 1 or vector.ndim != 1 or vector.dtype != self.spool.dtype:
            return f"what it revealed is not one {self.spool.dtype} vector named update"
        return self.keep(client, vector)

    def keep(self, client: int, vector: NDArray[Any]) -> str:
        """As `put`, for the vector itself, shape (length,)."""
        if len(vector) != self.length:
            return f"what it revealed has {len(vector)} numbers, not {self.length}"
        try:
            self.spool.put(client, vector)
        except ValueError as error:
            return str(error)
        self.rounds[client] = self.round
        return ""

    def forget(self, client: int) -> None:
        """Removes a client's update, if there is one."""
        self.spool.forget(client)
        self.rounds.pop(client, None)

    def came(self, client: int) -> bool:
        """Whether the update of a client came in this round."""
        return self.rounds.get(client) == self.round

    async def round_over(self, trained: Collection[int]) -> None:
        """Forgets what other clients revealed in this round, for example in a try that failed."""
        async with self.lock:
            for client in self.spool.clients:
                if self.came(client) and client not in trained:
                    self.forget(client)

    def forget_older(self) -> None:
        """Removes the updates of clients that revealed nothing in this round: they are out of date."""
        for client in self.spool.clients:
            if not self.came(client):
                self.forget(client)


def most_bytes(tensors: tuple[TensorSpec, ...], sketch: int) -> int:
    """The most bytes that a client may send at once: a model, an update in float32, or a sketch of `sketch` bytes."""
    return max(total_bytes(tensors), 4 * trainable_size(tensors), LENGTH_BYTES + sketch) + 8
