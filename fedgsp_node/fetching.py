"""Fetches the weights that orders start from."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from weakref import WeakSet, WeakValueDictionary

from fedgsp.connections.addresses import is_near, resolve
from fedgsp.connections.channels import Channels
from fedgsp.errors import UserError
from fedgsp.identity import HOLDERS
from fedgsp.messages import FailureCode, Source, SourceKind, Start, TensorSpec
from fedgsp.seldom import SeldomLog
from fedgsp.shared_work import SharedWork
from fedgsp.tensors.encoding import wire_bytes
from fedgsp.tensors.weights import Weights, WeightsError, check_same_tensors, require, total_bytes, without_head
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.link_choice import RAW
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.connections.peers import Peers
from fedgsp_node.connections.unreachable import Unreachable

logger = logging.getLogger(__name__)

Fetched = tuple[Weights, Source, int]
_HERE = Source(SourceKind.LOCAL, "")
_NO_FETCH = (SourceKind.LOCAL, SourceKind.OWN)
_SERVERS = (SourceKind.TOP_SERVER, SourceKind.MANAGER)
#: Failures after which a source comes last. A holder that begins a transfer and then hangs would cost as long each
#: time.
_NO_WAY = (FailureCode.UNREACHABLE, FailureCode.STALLED)

#: How often all sources are tried while a server among them cannot be reached, and the pause between two tries.
TRIES = 3
AGAIN_AFTER_S = 0.5


class Fetcher:
    """Tries the sources of a start in their order. Weights that several orders need are fetched once and shared."""

    def __init__(
        self,
        store: ModelStore,
        channels: Channels,
        tensors: tuple[TensorSpec, ...],
        top_server_host: str,
        not_dialled: Callable[[str], str] = lambda _: "",
        bases: Bases | None = None,
        joined: asyncio.Event | None = None,
    ) -> None:
        """`not_dialled` says why an address may not be dialled; it returns an empty text if the address may be.

        Models may come coded against one of `bases`. `joined` is set while this node has a connection with its top
        server. Otherwise its link is probably cut.
        """
        #: Against these, models come and go in code.
        self.bases = bases or Bases(RAW)
        self._not_dialled = not_dialled
        self._joined = joined
        self._store = store
        self._channels = channels
        self._peers = Peers(channels)
        #: The tensors of the model of the run.
        self.tensors = tensors
        self._host = top_server_host
        self._shared: SharedWork[Fetched] = SharedWork()
        self._in_use: WeakValueDictionary[str, Weights] = WeakValueDictionary()  # fetched, and still in use
        self._given_away: WeakSet[Weights] = WeakSet()
        #: Their addresses come last.
        self._unreachable = Unreachable()
        self.mark = 0  # chunks received so far
        self._log = SeldomLog(logger, logging.WARNING, "failed fetch")

    def given_away(self, weights: Weights) -> bool:
        """Whether the order that got these weights is the only one that has them, so that it may change them."""
        return weights in self._given_away

    async def get(
        self, start: Start, expected: tuple[TensorSpec, ...] | None = None, to_change: bool = False
    ) -> Fetched:
        """Weights, the source that delivered them, and the number of bytes fetched for this order.

        The weights must have the `expected` tensors; without these, the tensors of the model. With `to_change`, the
        caller gets the weights for itself if no other order waits for them; `given_away` then says so. Raises
        WeightsError with the reason of the last source if no source delivers.
        """
        if expected is None:
            expected = without_head(self.tensors) if start.without_head else self.tensors
        if any(source.kind in _NO_FETCH for source in start.sources):
            return await self._try_all(start, expected)
        held = await self._held(start, expected)
        if held is not None:
            return held, _HERE, 0
        key = start.model_id, start.sources
        # If no order waits any more, the fetch ends: weights that were stored then would never be released.
        shared = await self._shared.share(key, lambda: self._try_all(start, expected))
        weights, source, size = shared.result
        if to_change and not start.keep and shared.of == 1 and weights not in self.bases:
            self._given_away.add(weights)
            return weights, source, size
        self._in_use[start.model_id] = weights
        if start.keep:
            self._store.put(start.model_id, weights)
        if not shared.first:  # the first order has reported the bytes
            return weights, dataclasses.replace(source, travelled=0, coding=""), 0
        return weights, source, size

    async def _held(self, start: Start, expected: tuple[TensorSpec, ...]) -> Weights | None:
        """The model, if this node keeps it or another order uses it at this moment; otherwise None."""
        if start.keep and start.model_id in self._store:
            kept = await self._kept(start.model_id, expected)
            if start.digest in (b"", kept.digest):
                return kept
            # A round that is played again may make another model of that name, and nobody has told this node so.
            self._store.release([start.model_id])
        weights = self._in_use.get(start.model_id)
        if weights is None or weights.tensors != expected or start.digest not in (b"", weights.digest):
            return None
        if start.keep:
            self._store.put(start.model_id, weights)
        return weights

    async def _try_all(self, start: Start, expected: tuple[TensorSpec, ...]) -> Fetched:
        tries = 0
        while True:
            try:
                return await self._try_each(start, expected)
            except WeightsError as error:
                if error.failure.code is not FailureCode.UNREACHABLE:
                    raise
                if self._joined is not None and not self._joined.is_set():
                    await self._joined.wait()  # the manager has called the order off if it does not want it any more
                    continue
                # A server may be frozen for a moment, and the run with it. For a peer, another source stands in.
                tries += 1
                if tries == TRIES or not any(source.kind in _SERVERS for source in start.sources):
                    raise
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _try_each(self, start: Start, expected: tuple[TensorSpec, ...]) -> Fetched:
        error = WeightsError(FailureCode.NO_SUCH_MODEL, f"no source was named for {start.model_id!r}")
        for source in sorted(start.sources, key=lambda one: one.address in self._unreachable):
            try:
                return await self._from(source, start, expected)
            except WeightsError as failed:
                error = failed
                where = f"{source.kind.name.lower()} {source.name} {source.address}".strip()
                self._log.line(f"model={start.model_id} not had from {where}: {failed.failure}")
                if failed.failure.code in _NO_WAY and source.address:
                    self._unreachable.failed(source.address)
                elif failed.failure.code is FailureCode.NO_SUCH_MODEL:  # said by the peer
                    self._unreachable.answered(source.address)
        raise error

    async def _from(self, source: Source, start: Start, expected: tuple[TensorSpec, ...]) -> Fetched:
        if source.kind is SourceKind.OWN and start.model_id not in self._store:
            raise WeightsError(FailureCode.NO_SUCH_MODEL, f"this node has model {start.model_id!r} no more")
        require(
            source.kind in _NO_FETCH or source.kind in HOLDERS,
            FailureCode.BAD_ORDER,
            f"the order names a source of an unknown kind ({source.kind.name.lower()})",
        )
        if source.kind in _NO_FETCH:
            return await self._kept(start.model_id, expected), source, 0
        try:
            forbidden = self._not_dialled(source.address)
            require(not forbidden, FailureCode.POLICY, forbidden)
            address = resolve(source.address, self._host)
        except UserError as error:
            raise WeightsError(FailureCode.UNREACHABLE, error.what) from None
        async with self._peers.using(address, source.kind in _SERVERS):
            weights = await self._from_peer(source, address, start, expected)
        self._unreachable.answered(source.address)
        # The report need not bring the ticket back.
        source = dataclasses.replace(source, ticket=b"")
        if weights.came is not None:
            source = dataclasses.replace(source, travelled=weights.came.travelled, coding=weights.came.coding)
        return weights, source, wire_bytes(weights.tensors, weights.bfloat16)

    async def _from_peer(
        self, source: Source, address: str, start: Start, expected: tuple[TensorSpec, ...]
    ) -> Weights:
        try:
            holder = HOLDERS[source.kind](source.name)
            channel = await self._channels.to(address, holder, models=True)
            # This node has sessions with its servers, which notice their loss. It has none with another node.
            far = source.kind is SourceKind.NODE and not is_near(address.rpartition(":")[0])
            watched_over = await self._channels.to(address, holder) if far else None
        except UserError as error:
            raise WeightsError(FailureCode.UNREACHABLE, error.what) from None
        return await fetch(
            channel,
            start.model_id,
            expected,
            total_bytes(expected),
            self._chunk_came,
            ticket=source.ticket,
            digest=start.digest,
            bases=self.bases,
            watched_over=watched_over,
        )

    async def _kept(self, model_id: str, expected: tuple[TensorSpec, ...]) -> Weights:
        """A model that this node holds or waits for, checked: not everything that it holds is a model of the task."""
        weights = await self._store.get(model_id)
        check_same_tensors(weights.tensors, expected, f"model {model_id!r}")
        return weights

    def _chunk_came(self) -> None:
        self.mark += 1
