"""The weights of one group at its manager: fetched, averaged, kept for readers, and forgotten."""

import asyncio
import dataclasses
import functools
from collections.abc import Collection

from fedgsp.connections.channels import Channels
from fedgsp.errors import UserError
from fedgsp.identity import TOP_SERVER
from fedgsp.means.averages import Mean
from fedgsp.messages import (
    Failure,
    FailureCode,
    Initialise,
    ModelRef,
    Part,
    PartLost,
    Recall,
    Rerouted,
    RunGroupRequest,
    TensorSpec,
    Train,
    Trained,
)
from fedgsp.tensors.encoding import rounded
from fedgsp.tensors.spill import growing_room
from fedgsp.tensors.weights import Weights, WeightsError, check_same_tensors, require
from fedgsp.transfers.landing import Landing
from fedgsp.transfers.model_calls import fetch
from group_manager.ledger import Copy, Ledger, Origin
from group_manager.orders import Orders, Reports
from group_manager.room_ahead import RoomAhead
from group_manager.sessions import Outcome
from group_manager.shelves import Shelf
from group_manager.tickets import Tickets

#: Longest wait for a top server that does not fetch the models that are reserved for it: so many seconds, and the time
#: that their bytes take over a link of so many bytes per second.
RESERVED_TIMEOUT_S, THIN_LINK = 600.0, 20_000
#: Models reserved for the top server at once; bounds memory for any number of members.
MOST_RESERVED = 4
#: Failures of a start that may be other ones the next time: its nodes come back.
_MAY_COME_BACK = (FailureCode.NODE_LOST, FailureCode.UNREACHABLE)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Models:
    """Moves weights to this manager, and keeps the ledger and the store in step."""

    _request: RunGroupRequest
    _ledger: Ledger
    _orders: Orders
    _reports: Reports
    _store: Shelf
    _channels: Channels
    _tickets: Tickets
    #: By model id: where an upload goes that is not for the store.
    landings: dict[str, Landing] = dataclasses.field(default_factory=dict)
    #: By model id: why there was no room for its upload here.
    no_room: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Gets the reason as its result when this manager has no memory or no disk for a model. No member is to blame.
    full: asyncio.Future[str] = dataclasses.field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def room_ahead(self) -> RoomAhead:
        """For models that come before their turn; all groups of this manager share it."""
        return self._store.room_ahead

    # --- getting models

    async def collect(self, model_id: str, expected: tuple[TensorSpec, ...] = ()) -> Weights | Failure:
        """Brings a finished model here; a failure if that is impossible, or if it has other tensors than `expected`.

        Without `expected`, the tensors are not checked.
        """
        try:
            await self.wanted(model_id)
            weights = await self._store.get(model_id)
            if expected:
                check_same_tensors(weights.tensors, expected, f"model {model_id!r}")
            return weights
        except WeightsError as error:
            if error.failure.code is FailureCode.NO_ROOM:
                self.note_full(error.failure.detail)
                await asyncio.Event().wait()  # until the group has ended: the program must blame nobody for it
            return error.failure

    def note_full(self, why: str) -> None:
        """Ends the group: this manager has no memory or no disk for a model that it needs. No member is to blame."""
        if not self.full.done():
            self.full.set_result(why)

    def tensors_of(self, model_id: str) -> tuple[TensorSpec, ...] | None:
        """The tensors of a model that a member has made; None if they are not known, as those of an update."""
        record = self._ledger.look(model_id)
        work = record.maker.order.work if record.maker is not None else None
        made = isinstance(work, Recall) or (isinstance(work, Train | Initialise) and work.produces == model_id)
        return self._request.tensors or None if made or record.origin is Origin.AT_NODE else None

    async def make_start(self) -> None:
        """Makes the start of the group if it is a mean of parts, before any member is ordered to train from it.

        The nodes that have the parts may take their time, or hang. Members that waited for the start meanwhile would
        be taken for silent. If it cannot be made, members that ask for it are told so at once.
        """
        start = self._request.start
        if start is None or not self._request.parts or not self._request.members or self._request.finished:
            return  # a chain that goes on needs no start, unless it is cut back to its beginning
        found = await self.collect(start.id)
        if isinstance(found, Failure) and found.code not in _MAY_COME_BACK:
            self._ledger.look(start.id).wrong = found

    def has(self, model_id: str) -> bool:
        """Whether a model is here."""
        return model_id in self._store

    async def wanted(self, model_id: str) -> str:
        """Somebody asks this manager for a model: fetches it if it is not here, once for all who ask.

        A model that is coming is served only when it has been compared with its maker's report. Returns why there was
        no room for it here; empty if there was, or if it cannot be had for another reason.
        """
        record = self._ledger.look(model_id)
        task = record.fetch
        if task is None:
            if model_id in self._store:
                self.join(model_id)
                return ""
            if record.wrong is not None:
                self._store.fail(model_id, record.wrong)
                return ""
            self._store.expect(model_id)
            task = asyncio.create_task(self._fetch(model_id), name=f"carry {model_id}")
            self._ledger.copy(model_id, Copy.COMING, task)
        return await asyncio.shield(task)

    def join(self, model_id: str) -> None:
        """If another group has brought a model here, it stays for this group, too."""
        if self._ledger.look(model_id).copy is Copy.NONE and self._store.join(model_id):
            self._ledger.copy(model_id, Copy.HERE)

    def by_way_of_here(self, model_id: str) -> None:
        """A node gets a model from this manager; reports it if the node should have got it from another node."""
        detour = self._ledger.detour(model_id)
        if detour is not None:
            reader, holder = detour
            reason = f"node {holder.name} could not be reached at {holder.address}: by way of the manager"
            self._reports.tell(Rerouted(reader.client, reason))

    def arrived(self, model_id: str, trained: Trained) -> Trained | Failure:
        """A member's report. A failure if the member was to bring its model, and none or another one came."""
        if self._ledger.look(model_id).origin is not Origin.BRINGING:
            return trained
        if model_id not in self._store:
            return Failure(FailureCode.BAD_STREAM, f"model {model_id!r} did not come, though it was reported")
        weights = self._store.held(model_id)
        if trained.ref != weights.ref(model_id):
            return Failure(FailureCode.WRONG_DIGEST, _not_as_reported(model_id))
        self._reports.count_relayed(weights)
        return trained

    async def upload_into(self, landing: Landing, model_id: str, node: str, digest: bytes) -> None:
        """Lets a node upload a finished model to a landing. Raises WeightsError if it does not come as reported."""
        self.landings[model_id] = landing
        pending = self._orders.send_up(node, model_id, older=False)
        try:
            outcome = await self._orders.outcome(pending)
        finally:
            del self.landings[model_id]
            if not pending.outcome.done():
                self._orders.cancel(pending)
        if isinstance(outcome, Failure):
            raise _not_sent(outcome)
        weights = landing.came
        if weights is None:
            raise WeightsError(FailureCode.NO_SUCH_MODEL, _did_not_send(node, model_id))
        check_same_tensors(weights.tensors, self._request.tensors, f"model {model_id!r}")
        require(weights.digest == digest, FailureCode.WRONG_DIGEST, _not_as_reported(model_id))
        self._reports.count_relayed(weights)

    # --- keeping models

    def keep(self, model_id: str, weights: Weights) -> ModelRef:
        """Keeps a model that this manager made."""
        self._store.put(model_id, weights)
        self._ledger.copy(model_id, Copy.HERE)
        return weights.ref(model_id)

    async def reserve(self, model_id: str) -> ModelRef | Failure:
        """Brings a model here, where it stays until the top server forgets it. Its maker is told to forget it."""
        most_bytes = MOST_RESERVED * self._request.max_model_bytes
        try:
            async with asyncio.timeout(RESERVED_TIMEOUT_S + most_bytes / THIN_LINK):
                await self._store.fewer_than(MOST_RESERVED, self._ledger.reserved)
        except TimeoutError:
            return Failure(FailureCode.STALLED, "the top server does not fetch the models that wait for it")
        weights = await self.collect(model_id)
        if isinstance(weights, Failure):
            return weights
        self._orders.forget(self._ledger.reserve(model_id))
        return weights.ref(model_id)

    async def with_update(self, trained: Trained) -> Trained:
        """A member's report with its revealed update reserved here, or without one if it cannot be had."""
        if trained.update is None:
            return trained
        reserved = await self.reserve(trained.update.id)
        return dataclasses.replace(trained, update=reserved if isinstance(reserved, ModelRef) else None)

    def for_the_wire(self, weights: Weights) -> Weights:
        """A model that this manager made, rounded to bfloat16 if models travel so in this run."""
        training = self._request.training
        return rounded(weights) if training is not None and training.bfloat16 else weights

    # --- forgetting models

    def release(self, model_ids: Collection[str], stays: bool = False) -> None:
        """Lets all holders forget models of this group; `stays`: the makers keep them for their clients."""
        self._orders.forget(self._ledger.release(model_ids, stays))
        self._store.release(model_ids)

    def forget_copy(self, model_id: str) -> None:
        """Lets this manager, and nobody else, forget a model; an upload of it is not accepted any more."""
        self._ledger.forget_copy(model_id)
        self._store.release([model_id])

    def close(self, result_id: str) -> None:
        """Lets all forget the group's models, but for the result and the reserved models, which stay here."""
        tell, forget, fetches = self._ledger.close(result_id)
        self._orders.forget(tell)
        for task in fetches:
            task.cancel()
        self._store.release(forget)
        self._store.close()

    # --- fetching

    async def _fetch(self, model_id: str) -> str:
        """Brings a model here; returns why there was no room for it, and all who wait get that from this try."""
        began, no_room = self._orders.time(), ""
        self.no_room.pop(model_id, None)
        try:
            match self._ledger.look(model_id).origin:
                case Origin.PARTS:
                    self._store.put(model_id, await self._mean_of(self._request.parts))
                case Origin.TOP_SERVER:
                    digest = self._ledger.look(model_id).digest
                    fetching = functools.partial(self._fetch_from_top_server, model_id, digest)
                    self._store.put(model_id, await self._store.fetched(model_id, digest, fetching))
                case _:
                    await self._fetch_from_node(model_id)
        except UserError as error:  # the top server is not who it should be
            self._store.fail(model_id, Failure(FailureCode.UNREACHABLE, str(error)))
        except WeightsError as error:
            if error.failure.code is FailureCode.WRONG_DIGEST:
                self._ledger.look(model_id).wrong = error.failure
            if error.failure.code is FailureCode.NO_ROOM:
                no_room = error.failure.detail
            self._store.release([model_id])  # if it came, it is not what it should be
            self._store.fail(model_id, error.failure)
        except ValueError as error:  # parts that do not fit each other: all who wait must learn of it
            self._store.fail(model_id, Failure(FailureCode.WRONG_SHAPES, str(error)))
        finally:
            self._ledger.copy(model_id, Copy.HERE)
            self._orders.came(model_id, began)
        return no_room

    async def _fetch_from_top_server(self, model_id: str, digest: bytes) -> Weights:
        return await fetch(
            await self._channels.to(self._request.start_address, TOP_SERVER, models=True),
            model_id,
            None,
            self._request.max_model_bytes,
            make_room=growing_room,
            promised=False,
            ticket=self._tickets.own(model_id),
            digest=digest,
        )

    async def _mean_of(self, parts: tuple[Part, ...]) -> Weights:
        mean = Mean(weighted=True)
        lost = Failure(FailureCode.NO_SUCH_MODEL, "the start has no parts")
        for part in parts:
            assert part.ref is not None
            weights = await self.collect(part.ref.id, self._request.tensors)
            if isinstance(weights, Failure):
                # Perhaps lost with its node: the group, and the part's client, continue from the mean of the others.
                lost = weights
                self._reports.tell(PartLost(part.client, weights))
                continue
            await asyncio.to_thread(mean.fold, weights, part.weight)
            self.forget_copy(part.ref.id)
        if mean.empty:
            raise WeightsError(lost.code, lost.detail)
        return await asyncio.to_thread(lambda: self.for_the_wire(mean.result()))

    async def _fetch_from_node(self, model_id: str) -> None:
        record = self._ledger.look(model_id)
        maker, node = record.maker, record.maker.node if record.maker is not None else record.node
        if maker is not None and not self._orders.holds(model_id):
            raise WeightsError(FailureCode.NODE_LOST, f"node {maker.node} is gone, and model {model_id!r} with it")
        if not node:
            raise WeightsError(FailureCode.NO_SUCH_MODEL, f"no node is known to have model {model_id!r}")
        pending = self._orders.send_up(node, model_id, older=maker is None)
        if maker is not None:
            # The model may not be made yet. If the chain stalls, the program ends the chain, and with it this wait.
            await asyncio.wait([maker.outcome, pending.outcome], return_when=asyncio.FIRST_COMPLETED)
        outcome = await self._orders.outcome(pending, beside=self._orders.trainings)
        if not pending.outcome.done():  # it has stalled: a further order must not meet this one
            self._orders.cancel(pending)
        no_room = self.no_room.pop(model_id, None)  # there may have been room at another try
        if no_room is not None and model_id not in self._store:
            raise WeightsError(FailureCode.NO_ROOM, no_room)
        if isinstance(outcome, Failure):
            raise _not_sent(outcome)
        if model_id not in self._store:
            raise WeightsError(FailureCode.NO_SUCH_MODEL, _did_not_send(node, model_id))
        weights = self._store.held(model_id)
        self._reports.count_relayed(weights)
        digest = record.digest
        if maker is not None and not digest:
            await asyncio.wait([maker.outcome])  # the model may have come before the report
            digest = _reported(model_id, maker.outcome.result())
        require(digest in (b"", weights.digest), FailureCode.WRONG_DIGEST, _not_as_reported(model_id))


def _reported(model_id: str, outcome: Outcome) -> bytes:
    """The digest that the maker of a model has reported; empty if it has reported none.

    A node that found a model again after a recovery reports no digest.
    """
    refs = (getattr(outcome, "ref", None), getattr(outcome, "update", None))
    return next((ref.digest for ref in refs if ref is not None and ref.id == model_id), b"")


def _not_sent(why: Failure) -> WeightsError:
    """The error for a node that did not send its model, by its own word: it cannot know of the room here."""
    return WeightsError(FailureCode.UNREACHABLE if why.code is FailureCode.NO_ROOM else why.code, why.detail)


def _did_not_send(node: str, model_id: str) -> str:
    return f"node {node} did not send model {model_id!r}, but said so"


def _not_as_reported(model_id: str) -> str:
    return f"what came as model {model_id!r} is not what its maker reported"
