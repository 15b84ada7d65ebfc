"""Carries out training orders: fetch the start, train, take the outgoing steps, publish the result."""

import asyncio
import contextlib
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator

from fedgsp.errors import UserError
from fedgsp.messages import (
    Failure,
    FailureCode,
    ModelRef,
    Order,
    OrderKey,
    Source,
    SourceKind,
    Start,
    Train,
    Trained,
    TrainingSettings,
)
from fedgsp.optimizers import KEPT
from fedgsp.tensors.updates import update_of
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.to_the_end import to_the_end
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.clients import Clients
from fedgsp_node.fetching import Fetcher
from fedgsp_node.hosted_data import TRAIN
from fedgsp_node.kept.learned import Learned
from fedgsp_node.kept.own_models import OwnModels
from fedgsp_node.kept.personal_state import HEAD, optimizer_of
from fedgsp_node.order_error import OrderError, failing
from fedgsp_node.outgoing.once import Once
from fedgsp_node.outgoing.steps import Published, Steps
from fedgsp_node.slot import Slot

logger = logging.getLogger(__name__)

#: Uploads a model to the manager that waits for it: id, weights, ticket, and the manager's machine if it is known.
Uploader = Callable[[str, Weights, bytes, str], Awaitable[None]]
#: Is told of a training that is done, before its result is uploaded.
Done = Callable[[Trained], None]
#: Is told the digest of a start that came from another node.
Came = Callable[[bytes], None]


@contextlib.contextmanager
def promised(store: ModelStore, model_id: str) -> Iterator[None]:
    """Passes the reason to the orders that wait for a model if it will not come. An empty id promises nothing."""
    try:
        yield
    except (OrderError, WeightsError, UserError, asyncio.CancelledError) as error:
        if model_id:
            store.fail(model_id, _why(error))
        raise


def _why(error: OrderError | WeightsError | UserError | asyncio.CancelledError) -> Failure:
    if isinstance(error, OrderError | WeightsError):
        return error.failure
    if isinstance(error, UserError):
        return Failure(FailureCode.UNSPECIFIED, str(error))
    return Failure(FailureCode.CANCELLED, "called off")


async def publish(store: ModelStore, model_id: str, weights: Weights) -> Trained:
    """Puts a model into the store, from which other processes fetch it; returns a report with its reference."""
    # Stored before the digest is computed: the next client of this node can start at once.
    store.put(model_id, weights)
    await asyncio.to_thread(lambda: weights.digest)
    return Trained(weights.ref(model_id))


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """The start of a training, and how it came."""

    weights: Weights
    source: Source
    #: Fetched for this order.
    bytes: int
    #: Whether nobody else has these weights, so that the training may change them.
    in_place: bool


class Trainer:
    """Trains the clients of a node. Results that may be published only once are handed out again."""

    def __init__(self, clients: Clients, store: ModelStore, fetcher: Fetcher, slot: Slot, own: OwnModels) -> None:
        self._clients = clients
        self._store = store
        self._fetcher = fetcher
        self._slot = slot
        self._own = own
        self._once = Once(clients.personal, clients.tensors)
        self._turns = defaultdict[int, asyncio.Lock](asyncio.Lock)  # by client

    async def carry_out(
        self,
        order: Order,
        work: Train,
        upload: Uploader,
        before_training: Callable[[], None],
        done: Done,
        start_came: Came = lambda _: None,
    ) -> Trained:
        """The report on a training; raises OrderError or WeightsError with the reason if there is none.

        Calls `before_training` once the start has been fetched, before that `start_came` if another node had it, and
        `done` when the result is published.
        """
        with promised(self._store, work.produces):
            key, start, settings = _checked(order, work)
            steps, client = Steps(work), order.client
            found = None
            if not steps.repeatable:
                found = await self._slot.outgoing.run(lambda _: self._once.find(client, key, work))
            begun = found or await self._begin(start, steps, before_training, start_came)
            # One training of a client at a time, up to its receipt: the next one begins with what this one has left.
            async with self._turns[client]:
                if isinstance(begun, Begun):
                    learned, figures = await self._learn(client, key, work, start, settings, begun)
                    made = await self._made(client, key, work, start, steps, learned, figures)
                else:
                    logger.info("round=%d client=%d gets its published result again", key.round, client)
                    made = begun
                # If this were called off in the middle, the client might not go on from a training that has a receipt.
                try:
                    result, report = await to_the_end(self._told(client, work, start, steps, made, done))
                except (OrderError, UserError, asyncio.CancelledError):
                    self._own.give_up(work.produces)
                    # If nobody will ask for it: it may have come after the order to release it.
                    if work.produces not in self._own:
                        self._store.release([work.produces, update_of(work.produces)])
                    raise
        if work.bring:
            try:
                await upload(work.produces, result.model, work.ticket, "")
            finally:
                if not work.retain:
                    self._store.release([work.produces])
        return report

    async def _made(
        self,
        client: int,
        key: OrderKey,
        work: Train,
        start: Start,
        steps: Steps,
        learned: Learned,
        figures: Trained,
    ) -> Published:
        """Takes the outgoing steps, and prepares what the client does not share to be kept.

        Both in the slot of the steps, which finishes what it began: nobody draws, or prepares anything else for the
        client, while a result is being made. A step that hangs can be called off. It holds up the other results of the
        node.
        """

        def make() -> Published:
            if not (work.trial or work.aside):
                self._prepare(client, learned, start.without_head or learned.keeps_head, key.round, work.produces)
            return steps.publish(client, key, learned, figures, self._once.secret)

        if steps.repeatable:
            return await self._slot.outgoing.run(lambda _: make())
        return await self._slot.outgoing.run(lambda _: self._once.publish(client, key, work, make))

    async def _told(
        self, client: int, work: Train, start: Start, steps: Steps, found: Published, done: Done
    ) -> tuple[Published, Trained]:
        """The result, once it is published, and the report, of which `done` is told.

        Then the client goes on from this training. If `done` raises an error, it does not.
        """
        report, personal = found.report, self._clients.personal
        if not steps.repeatable:  # an earlier order may have published it
            with failing(FailureCode.UNSPECIFIED, UserError):
                await asyncio.to_thread(personal.hand_out, client, found.training, work.produces)
        if found.update is not None:
            self._store.put(update_of(work.produces), found.update)
            report = dataclasses.replace(report, update=found.update.ref(update_of(work.produces)))
        if work.retain:
            await asyncio.to_thread(self._own.save, client, work.produces, found.model)
        result = await publish(self._store, work.produces, found.model)
        report = dataclasses.replace(report, ref=result.ref)
        done(report)
        try:
            if work.retain or report.keeps:
                await asyncio.to_thread(self._settle, client, work, start, report.keeps)
        finally:
            if work.retain:
                self._own.hold(client, start.model_id, work.produces)
        return found, report

    def _settle(self, client: int, work: Train, start: Start, keeps: bool) -> None:
        """Keeps what a training has left, of which there is a receipt: all of it counts, even if the disk fails.

        In one call: after a first one that hangs, a node that ends would wait for a second one.
        """
        try:
            if work.retain:
                self._own.settle(client, start.model_id, work.produces)
        finally:
            if keeps:
                self._clients.personal.settle(client, work.produces)

    async def _begin(self, start: Start, steps: Steps, before_training: Callable[[], None], start_came: Came) -> Begun:
        """Fetches the start of a training."""
        weights, source, size = await self._fetcher.get(start, to_change=not steps.needs_start)
        if source.kind is SourceKind.NODE and weights.known_digest:
            start_came(weights.known_digest)
        before_training()
        return Begun(weights, source, size, self._fetcher.given_away(weights))

    async def _learn(
        self, client: int, key: OrderKey, work: Train, start: Start, settings: TrainingSettings, begun: Begun
    ) -> tuple[Learned, Trained]:
        """Trains from the start; returns a report as well."""
        weights, in_place, came = begun.weights, begun.in_place, begun.weights.known_digest
        # The order takes the slot only now: while it waited for weights, it must not block the orders that make them.
        learned = await self._slot.run(
            lambda control: self._clients.train(
                client, weights, settings, key.round, control, in_place, optimizer_of(key.run)
            )
        )
        if came is None and not in_place:  # made here: the client before has it hashed at the same time
            came = await asyncio.to_thread(lambda: weights.digest)
        keeps_head = start.without_head or learned.keeps_head
        keeps = not (work.trial or work.aside) and (keeps_head or bool(learned.keeps))
        report = Trained(
            None,
            samples=self._clients.train_samples(client),
            loss=learned.loss,
            seconds=learned.seconds,
            source=begun.source,
            bytes=begun.bytes,
            steps=learned.steps,
            keeps=keeps,
            afresh=keeps and learned.afresh,
            train_accuracy=await self._accuracy(client, learned.after) if work.measure_accuracy else 0.0,
            start=ModelRef(start.model_id, digest=came) if came else None,
        )
        return learned, report

    async def _accuracy(self, client: int, trained: Weights) -> float:
        """The accuracy of a trained model on the client's training part, at least that of a guess."""
        clients = self._clients
        counts = await self._slot.run(lambda control: clients.evaluate(client, trained, control, part=TRAIN))
        if not counts.judged:
            raise OrderError(Failure(FailureCode.TASK_RAISED, "the task has no accuracy"))
        return max(counts.correct / counts.judged, 1 / max(1, clients.task.num_classes))

    def _prepare(self, client: int, learned: Learned, head: bool, round_number: int, training: str) -> None:
        left = {HEAD: self._clients.head_of(learned.after), **learned.keeps} if head else learned.keeps
        if left:
            with failing(FailureCode.UNSPECIFIED, UserError):
                self._clients.personal.prepare(client, left, round_number, training)


def _checked(order: Order, work: Train) -> tuple[OrderKey, Start, TrainingSettings]:
    if work.start is None or work.settings is None or order.key is None:
        raise OrderError(Failure(FailureCode.BAD_ORDER, "a training order without start or settings"))
    OrderError.require(
        work.start.model_id != work.produces,
        FailureCode.BAD_ORDER,
        f"model {work.produces!r} cannot start from itself",
    )
    settings = work.settings
    if work.aside and settings.optimizer is not None and settings.optimizer.state == KEPT:
        # It says nothing of the client's training in the round.
        settings = dataclasses.replace(settings, optimizer=dataclasses.replace(settings.optimizer, state=""))
    return order.key, work.start, settings
