"""Gets the weights that an order starts from."""

from __future__ import annotations

import asyncio
import logging

from fedgsp.channels import Channels, resolve
from fedgsp.messages import FailureCode, Source, SourceKind, Start, TensorSpec
from fedgsp.model_service import fetch
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights, WeightsError, total_bytes

logger = logging.getLogger(__name__)

Fetched = tuple[Weights, Source, int]
_HERE = Source(SourceKind.LOCAL, "")


class Fetcher:
    """Tries the sources of a start in their order; fetches weights that several orders need once."""

    def __init__(
        self, store: ModelStore, channels: Channels, tensors: tuple[TensorSpec, ...], top_server_host: str
    ) -> None:
        self._store = store
        self._channels = channels
        self._tensors = tensors
        self._host = top_server_host
        self._max_bytes = total_bytes(tensors)
        self._shared: dict[str, asyncio.Task[Fetched]] = {}
        self._unreachable: set[str] = set()

    async def get(self, start: Start) -> Fetched:
        """Weights, the source that delivered them, and the bytes that this order moved; raises WeightsError."""
        if not start.keep:
            return await self._try_all(start)
        if start.model_id in self._store:
            return await self._store.get(start.model_id), _HERE, 0
        first = start.model_id not in self._shared
        if first:
            self._shared[start.model_id] = asyncio.create_task(self._fetch_and_keep(start))
        weights, source, size = await asyncio.shield(self._shared[start.model_id])
        return weights, source, size if first else 0

    async def _fetch_and_keep(self, start: Start) -> Fetched:
        try:
            fetched = await self._try_all(start)
            self._store.put(start.model_id, fetched[0])
            return fetched
        finally:
            del self._shared[start.model_id]

    async def _try_all(self, start: Start) -> Fetched:
        error = WeightsError(FailureCode.NO_SUCH_MODEL, f"no source was named for {start.model_id!r}")
        for source in self._in_order(start.sources):
            try:
                return await self._from(source, start.model_id)
            except WeightsError as failed:
                error = failed
                where = f"{source.kind.name.lower()} {source.name} {source.address}".strip()
                logger.warning("model=%s not had from %s: %s", start.model_id, where, failed.failure)
                if failed.failure.code is FailureCode.UNREACHABLE:
                    self._unreachable.add(source.address)
        raise error

    def _in_order(self, sources: tuple[Source, ...]) -> list[Source]:
        """As declared, but an address that failed before comes last: one attempt at it is enough."""
        return sorted(sources, key=lambda source: source.address in self._unreachable)

    async def _from(self, source: Source, model_id: str) -> Fetched:
        if source.kind is SourceKind.LOCAL:
            return await self._store.get(model_id), source, 0
        channel = self._channels.to(resolve(source.address, self._host))
        weights = await fetch(channel, model_id, self._tensors, self._max_bytes)
        return weights, source, weights.buffer.nbytes
