"""Carries out the orders of group managers: one method per kind of order, except training, which has a file."""

import asyncio
import dataclasses
import functools

import numpy as np

from fedgsp.messages import (
    Additions,
    Constant,
    Describe,
    Described,
    Discriminate,
    Discriminated,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    Initialise,
    Order,
    Recall,
    Recalled,
    Release,
    Result,
    SendUp,
    Source,
    SourceKind,
    Train,
    Trained,
)
from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.clients import Clients
from fedgsp_node.discriminating import Discriminating
from fedgsp_node.fetching import Fetcher
from fedgsp_node.hosted_data import TEST, TRAIN, VALIDATION
from fedgsp_node.kept.own_models import OwnModels
from fedgsp_node.kept.personal_state import optimizer_of
from fedgsp_node.order_error import OrderError
from fedgsp_node.policies.guard import Guard
from fedgsp_node.receipts import trained_models
from fedgsp_node.slot import Slot
from fedgsp_node.trainer import Came, Done, Trainer, Uploader, promised, publish


class Worker:
    """Carries out orders with the clients, the model store and the training slot of one node."""

    def __init__(
        self, clients: Clients, store: ModelStore, fetcher: Fetcher, slot: Slot, guard: Guard | None = None
    ) -> None:
        """Without a guard, the worker carries out every order."""
        #: Admits the orders.
        self.guard = guard or Guard(clients.hosted, store)
        self._clients = clients
        self._store = store
        self._fetcher = fetcher
        self._slot = slot
        self._chunks_gone = 0
        self._discriminating = Discriminating(clients, fetcher, slot, self.guard.check_size)
        self._expect_models()

    def _expect_models(self) -> None:
        self._fetcher.tensors = self._clients.tensors
        self.guard.expect(self._clients.tensors)
        self._own = OwnModels(self._store, self._clients.personal, self._clients.tensors)
        self._trainer = Trainer(self._clients, self._store, self._fetcher, self._slot, self._own)

    async def extend(self, additions: Additions | None) -> None:
        """Adds to the model what a run adds to it, before the run is opened; raises the errors of `Clients.extend`."""
        await self._slot.run(lambda _: self._clients.extend(additions))
        self._expect_models()

    async def make_constants(self, seed: int) -> tuple[Constant, ...]:
        """The tensors of the model that do not travel, made from a seed, with digests; raises TaskError."""
        made = self._clients.made_constants(seed)
        # A node that joins again need not wait for a training to end.
        return await self._slot.run(lambda _: self._clients.make_constants(seed)) if made is None else made

    def open(self, run_id: str) -> None:
        """Switches to a run: forgets the models of the last run, and reads the models of this run from disk."""
        personal = self._clients.personal
        personal.open(run_id)
        trainings = functools.cache(functools.partial(trained_models, personal.directory))
        personal.settle_those_of(trainings)
        self._discriminating.forget()
        self._own.reopen((hosted.client for hosted in self._clients.hosted), trainings)

    @property
    def bases(self) -> Bases:
        """Against these, models come and go in code."""
        return self._fetcher.bases

    @property
    def mark(self) -> int:
        """A counter of progress: trained batches, received chunks and sent chunks."""
        return self._slot.mark + self._fetcher.mark + self._chunks_gone

    @property
    def computed_s(self) -> float:
        """Seconds of processor time that trainings and outgoing steps of this node have used so far."""
        return self._slot.computed_s + self._slot.outgoing.computed_s

    def chunk_went(self) -> None:
        """Counts a chunk that was sent to a manager."""
        self._chunks_gone += 1

    async def carry_out(
        self, order: Order, upload: Uploader, trained: Done = lambda _: None, start_came: Came = lambda _: None
    ) -> Result | Recalled | None:
        """The result of an order, None for orders without one; raises OrderError or WeightsError with the reason.

        `trained` is told of the result of a training before it is uploaded. `start_came` is told the digest of its
        start if another node had it.
        """
        with promised(self._store, getattr(order.work, "produces", "")), self.guard.passing(order):
            return await self._carry_out(order, upload, trained, start_came)

    async def _carry_out(
        self, order: Order, upload: Uploader, trained: Done, start_came: Came
    ) -> Result | Recalled | None:
        match order.work:
            case Train():
                forget = self._discriminating.forget
                return await self._trainer.carry_out(order, order.work, upload, forget, trained, start_came)
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
            raise OrderError(
                Failure(FailureCode.BAD_ORDER, f"models that begin with {work.prefix[:100]!r} are not that group's")
            )
        held = self._store.ids(work.prefix)
        wanted = set(work.model_ids)
        self._store.release([model_id for model_id in held if model_id not in wanted and model_id not in self._own])
        return Recalled(tuple(model_id for model_id in held if model_id in wanted))

    async def _send_up(self, work: SendUp, upload: Uploader) -> None:
        if work.earlier and work.model_id not in self._store:
            raise OrderError(Failure(FailureCode.NO_SUCH_MODEL, f"this node has model {work.model_id!r} no more"))
        await upload(work.model_id, await self._store.get(work.model_id), work.ticket, work.machine)

    async def _evaluate(self, order: Order, work: Evaluate) -> Evaluated:
        if work.start is None:
            raise OrderError(Failure(FailureCode.BAD_ORDER, "an evaluation order without start"))
        weights, source, size = await self._fetcher.get(work.start, to_change=not work.compared_with)
        in_place = self._fetcher.given_away(weights)
        counts, distance = Evaluated(0, 0, 0.0), 0.0
        if not work.only_compare:
            key = order.key
            personalised_in = key.round if work.personalised and key is not None else None
            kept_for = optimizer_of(key.run if key is not None else "")
            counts = await self._slot.run(
                lambda control: self._clients.evaluate(
                    order.client, weights, control, work.settings, _part_of(work), personalised_in, in_place, kept_for
                )
            )
        if work.compared_with:
            if work.compared_with not in self._store:
                raise OrderError(
                    Failure(
                        FailureCode.NO_SUCH_MODEL,
                        f"client {order.client} has no model {work.compared_with!r} to compare with",
                    )
                )
            distance = await asyncio.to_thread(_squared_distance, weights, await self._store.get(work.compared_with))
        return dataclasses.replace(counts, source=source, bytes=size, squared_distance=distance)

    async def _discriminate(self, order: Order, work: Discriminate) -> Discriminated:
        answer, networks = await self._discriminating.carry_out(order, work)
        if networks is None:
            return answer
        return dataclasses.replace(answer, ref=(await publish(self._store, work.produces, networks)).ref)

    async def _initialise(self, work: Initialise) -> Trained:
        weights = await self._slot.run(lambda _: self._clients.initial_weights(work.seed))
        made = await publish(self._store, work.produces, weights)
        return dataclasses.replace(made, source=Source(SourceKind.LOCAL, ""))


def _part_of(work: Evaluate) -> str:
    return TRAIN if work.training_part else VALIDATION if work.validation_part else TEST


def _squared_distance(some: Weights, other: Weights) -> float:
    """Sum of squared differences over the trainable tensors that both models have.

    Raises WeightsError if a tensor has different shapes in the two models.
    """
    for spec in trainable(some.tensors):
        theirs = other.arrays.get(spec.name)
        if theirs is not None and theirs.shape != spec.shape:
            raise WeightsError(
                FailureCode.WRONG_SHAPES,
                f"tensor {spec.name!r} has shapes {list(spec.shape)} and {list(theirs.shape)}",
            )
    return sum(
        float(np.sum((some.arrays[spec.name].astype(np.float64) - other.arrays[spec.name].astype(np.float64)) ** 2))
        for spec in trainable(some.tensors)
        if spec.name in other.arrays
    )
