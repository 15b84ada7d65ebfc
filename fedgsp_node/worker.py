"""Carries out orders: fetch, train, keep, report."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from fedgsp.messages import (
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    Initialise,
    Order,
    Release,
    Result,
    SendUp,
    Source,
    SourceKind,
    Train,
    Trained,
)
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights, WeightsError
from fedgsp_node.clients import Clients, OrderError
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot

#: Hands a model to the manager that asked for it.
Uploader = Callable[[str, Weights], Awaitable[None]]


class Worker:
    """Does what managers order, with the clients, the store and the training slot of one node."""

    def __init__(self, clients: Clients, store: ModelStore, fetcher: Fetcher, slot: Slot) -> None:
        self._clients = clients
        self._store = store
        self._fetcher = fetcher
        self._slot = slot

    @property
    def mark(self) -> int:
        """Grows while anything moves here: a batch was trained, or a chunk came."""
        return self._slot.mark + self._fetcher.mark

    async def carry_out(self, order: Order, upload: Uploader) -> Result | None:
        """The order's result; raises OrderError or WeightsError with the reason if there is none."""
        match order.work:
            case Train():
                return await self._train(order, order.work)
            case Evaluate():
                return await self._evaluate(order, order.work)
            case Describe():
                return Described(await self._slot.run(lambda _: self._clients.class_counts(order.client)))
            case Initialise():
                return await self._initialise(order.work)
            case SendUp():
                await upload(order.work.model_id, await self._store.get(order.work.model_id))
            case Release():
                self._store.release(order.work.model_ids)
            case _:
                raise OrderError(Failure(FailureCode.BAD_ORDER, "this node does not know such an order"))
        return None

    async def _train(self, order: Order, work: Train) -> Trained:
        try:
            if work.start is None or work.settings is None or order.key is None:
                raise OrderError(Failure(FailureCode.BAD_ORDER, "a training order without start or settings"))
            start, source, size = await self._fetcher.get(work.start)
            # The slot is taken only now: a chain that still waits for its weights must not block another.
            settings, round_number = work.settings, order.key.round
            trained, loss, seconds = await self._slot.run(
                lambda control: self._clients.train(order.client, start, settings, round_number, control)
            )
        except (OrderError, WeightsError) as error:
            self._store.fail(work.produces, error.failure)
            raise
        except asyncio.CancelledError:
            self._store.fail(work.produces, Failure(FailureCode.CANCELLED, "called off"))
            raise
        samples = self._clients.train_samples(order.client)
        result = await self._keep(work.produces, trained)
        return dataclasses.replace(result, samples=samples, loss=loss, seconds=seconds, source=source, bytes=size)

    async def _evaluate(self, order: Order, work: Evaluate) -> Evaluated:
        if work.start is None:
            raise OrderError(Failure(FailureCode.BAD_ORDER, "an evaluation order without start"))
        weights, source, size = await self._fetcher.get(work.start)
        counts = await self._slot.run(lambda control: self._clients.evaluate(order.client, weights, control))
        return dataclasses.replace(counts, source=source, bytes=size)

    async def _initialise(self, work: Initialise) -> Trained:
        weights = await self._slot.run(lambda _: self._clients.initial_weights(work.seed))
        result = await self._keep(work.produces, weights)
        return dataclasses.replace(result, source=Source(SourceKind.LOCAL, ""), tensors=self._clients.tensors)

    async def _keep(self, model_id: str, weights: Weights) -> Trained:
        # Kept before it is hashed: the next client of this node can begin at once.
        self._store.put(model_id, weights)
        await asyncio.to_thread(lambda: weights.digest)
        return Trained(weights.ref(model_id))
