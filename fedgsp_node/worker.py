"""Carries out orders: fetch, train, keep, report."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator

import numpy as np

from fedgsp.encoding import rounded
from fedgsp.errors import UserError
from fedgsp.messages import (
    Describe,
    Described,
    Discriminate,
    Discriminated,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    Initialise,
    ModelRef,
    Order,
    Recall,
    Recalled,
    Release,
    Result,
    Reveal,
    SendUp,
    Source,
    SourceKind,
    Train,
    Trained,
    TrainingSettings,
)
from fedgsp.model_store import ModelStore
from fedgsp.seeds import derive
from fedgsp.updates import trainable, update_of
from fedgsp.weights import Weights, WeightsError, without_head
from fedgsp_node.clients import Clients, Learned
from fedgsp_node.discriminating import Discriminating
from fedgsp_node.fetching import Fetcher
from fedgsp_node.order_error import OrderError
from fedgsp_node.own_models import OwnModels
from fedgsp_node.slot import Slot
from fedgsp_node.updates import reveal

#: Hands a model to the manager that waits for it: id, weights, and the machine that it is on if known.
Uploader = Callable[[str, Weights, str], Awaitable[None]]


class Worker:
    """Does what managers order, with the clients, the store and the training slot of one node."""

    def __init__(self, clients: Clients, store: ModelStore, fetcher: Fetcher, slot: Slot) -> None:
        self._clients = clients
        self._store = store
        self._fetcher = fetcher
        self._slot = slot
        self._chunks_gone = 0
        self._own = OwnModels(store, clients.personal, clients.tensors)
        self._discriminating = Discriminating(clients, fetcher, slot)

    def open(self, run_id: str) -> None:
        """Turns to a run: nothing of the last one is used, and what was kept on disk for this one is there again."""
        self._clients.personal.open(run_id)
        self._discriminating.forget()
        self._own.reopen(hosted.client for hosted in self._clients.hosted)

    @property
    def mark(self) -> int:
        """Grows while anything moves here: a batch was trained, or a chunk came or went."""
        return self._slot.mark + self._fetcher.mark + self._chunks_gone

    def chunk_went(self) -> None:
        """A part of a model was handed to the manager that asked for it."""
        self._chunks_gone += 1

    async def carry_out(self, order: Order, upload: Uploader) -> Result | Recalled | None:
        """The order's result; raises OrderError or WeightsError with the reason if there is none."""
        match order.work:
            case Train():
                return await self._train(order, order.work, upload)
            case Evaluate():
                return await self._evaluate(order, order.work)
            case Discriminate():
                return await self._discriminate(order, order.work)
            case Describe():
                return Described(await self._slot.run(lambda _: self._clients.class_counts(order.client)))
            case Initialise():
                return await self._initialise(order.work)
            case SendUp():
                await self._send_up(order.work, upload)
            case Release():
                self._store.release(order.work.model_ids)
                if order.work.own:
                    self._own.forget(order.work.model_ids)
            case Recall():
                return self._recall(order, order.work)
            case _:
                raise OrderError(Failure(FailureCode.BAD_ORDER, "this node does not know such an order"))
        return None

    def _recall(self, order: Order, work: Recall) -> Recalled:
        key = order.key
        if key is None or not work.prefix.startswith(f"{key.run}/{key.round}/{key.group}/"):
            detail = f"models that begin with {work.prefix[:100]!r} are not that group's"
            raise OrderError(Failure(FailureCode.BAD_ORDER, detail))
        held = self._store.ids(work.prefix)
        wanted = set(work.model_ids)
        self._store.release([model_id for model_id in held if model_id not in wanted and model_id not in self._own])
        return Recalled(tuple(model_id for model_id in held if model_id in wanted))

    async def _send_up(self, work: SendUp, upload: Uploader) -> None:
        if work.earlier and work.model_id not in self._store:
            raise OrderError(Failure(FailureCode.NO_SUCH_MODEL, f"this node has model {work.model_id!r} no more"))
        await upload(work.model_id, await self._store.get(work.model_id), work.machine)

    async def _train(self, order: Order, work: Train, upload: Uploader) -> Trained:
        with self._promised(work.produces):
            if work.start is None or work.settings is None or order.key is None:
                raise OrderError(Failure(FailureCode.BAD_ORDER, "a training order without start or settings"))
            if work.start.model_id == work.produces:
                raise OrderError(Failure(FailureCode.BAD_ORDER, f"model {work.produces!r} cannot start from itself"))
            start, source, size = await self._fetcher.get(work.start, to_change=work.reveal is None)
            in_place = self._fetcher.given_away(start)
            self._discriminating.forget()  # their time is over when training begins
            # The slot is taken only now: a chain that still waits for its weights must not block another.
            settings, round_number = work.settings, order.key.round
            learned = await self._slot.run(
                lambda control: self._clients.train(order.client, start, settings, round_number, control, in_place)
            )
            trained = learned.after
            if work.start.without_head:
                trained = learned.after.part(self._clients.shared)
            keeps_head = work.start.without_head or learned.keeps_head
            if not work.trial:
                await asyncio.to_thread(self._keep, order.client, learned, keeps_head, round_number)
            update = await self._reveal(work, learned)  # exact, as what the client keeps
            if settings.bfloat16:
                trained = await asyncio.to_thread(rounded, trained)
            if work.retain:
                await asyncio.to_thread(self._own.save, order.client, work.start.model_id, work.produces, trained)
                self._own.hold(order.client, work.start.model_id, work.produces)
        keeps = not work.trial and (keeps_head or learned.personal is not None)
        samples = self._clients.train_samples(order.client)
        result = await self._publish(work.produces, trained)
        if work.bring:
            try:
                await upload(work.produces, trained, "")
            finally:
                if not work.retain:
                    self._store.release([work.produces])
        return dataclasses.replace(
            result,
            samples=samples,
            loss=learned.loss,
            seconds=learned.seconds,
            source=source,
            bytes=size,
            update=update,
            steps=learned.steps,
            keeps=keeps,
            afresh=keeps and learned.afresh,
        )

    @contextlib.contextmanager
    def _promised(self, model_id: str) -> Iterator[None]:
        """Tells those who wait for a model why it will not come; an order that makes none promises none."""
        try:
            yield
        except (OrderError, WeightsError, asyncio.CancelledError) as error:
            called_off = Failure(FailureCode.CANCELLED, "called off")
            if model_id:
                self._store.fail(model_id, called_off if isinstance(error, asyncio.CancelledError) else error.failure)
            raise

    def _keep(self, client: int, learned: Learned, head: bool, round_number: int) -> None:
        """Keeps what the client does not share."""
        try:
            if head:
                self._clients.keep_head(client, learned.after, round_number)
            if learned.personal is not None:
                self._clients.keep_personal(client, learned.personal, round_number)
        except UserError as error:
            raise OrderError(Failure(FailureCode.UNSPECIFIED, str(error))) from error

    async def _reveal(self, work: Train, learned: Learned) -> ModelRef | None:
        """Makes what the client shows of its update, and keeps it for whoever asked."""
        if work.reveal is None or work.settings is None:
            return None
        shown = await asyncio.to_thread(_view, work.reveal, learned, work.settings)
        model_id = update_of(work.produces)
        self._store.put(model_id, shown)
        return shown.ref(model_id)

    async def _evaluate(self, order: Order, work: Evaluate) -> Evaluated:
        if work.start is None:
            raise OrderError(Failure(FailureCode.BAD_ORDER, "an evaluation order without start"))
        weights, source, size = await self._fetcher.get(work.start)
        counts, distance = Evaluated(0, 0, 0.0), 0.0
        if not work.only_compare:
            personalised_in = order.key.round if work.personalised and order.key is not None else None
            counts = await self._slot.run(
                lambda control: self._clients.evaluate(
                    order.client, weights, control, work.settings, work.training_part, personalised_in
                )
            )
        if work.compared_with:
            if work.compared_with not in self._store:
                detail = f"client {order.client} has no model {work.compared_with!r} to compare with"
                raise OrderError(Failure(FailureCode.NO_SUCH_MODEL, detail))
            other = await self._store.get(work.compared_with)
            distance = await asyncio.to_thread(_squared_distance, weights, other)
        return dataclasses.replace(counts, source=source, bytes=size, squared_distance=distance)

    async def _discriminate(self, order: Order, work: Discriminate) -> Discriminated:
        with self._promised(work.produces):
            answer, networks = await self._discriminating.carry_out(order, work)
        if networks is None:
            return answer
        return dataclasses.replace(answer, ref=(await self._publish(work.produces, networks)).ref)

    async def _initialise(self, work: Initialise) -> Trained:
        weights = await self._slot.run(lambda _: self._clients.initial_weights(work.seed))
        result = await self._publish(work.produces, weights)
        return dataclasses.replace(result, source=Source(SourceKind.LOCAL, ""))

    async def _publish(self, model_id: str, weights: Weights) -> Trained:
        # Kept before it is hashed: the next client of this node can begin at once.
        self._store.put(model_id, weights)
        await asyncio.to_thread(lambda: weights.digest)
        return Trained(weights.ref(model_id))


def _view(asked: Reveal, learned: Learned, settings: TrainingSettings) -> Weights:
    before, after = learned.before, learned.after
    if asked.without_head:
        shared = without_head(after.tensors)
        before, after = before.part(shared), after.part(shared)
    try:
        # One projection for the whole run: a newcomer is compared with what others showed a round before.
        return reveal(asked.view, before, after, settings.learning_rate, derive(settings.seed, "reveal"))
    except ValueError as error:
        raise OrderError(Failure(FailureCode.BAD_ORDER, str(error))) from error


def _squared_distance(some: Weights, other: Weights) -> float:
    """Sum of squared differences over what is trained; tensors that only one of them has do not count.

    Raises WeightsError for models whose tensors differ in shape.
    """
    for spec in trainable(some.tensors):
        theirs = other.arrays.get(spec.name)
        if theirs is not None and theirs.shape != spec.shape:
            detail = f"tensor {spec.name!r} has shapes {list(spec.shape)} and {list(theirs.shape)}"
            raise WeightsError(FailureCode.WRONG_SHAPES, detail)
    return sum(
        float(np.sum((some.arrays[spec.name].astype(np.float64) - other.arrays[spec.name].astype(np.float64)) ** 2))
        for spec in trainable(some.tensors)
        if spec.name in other.arrays
    )
