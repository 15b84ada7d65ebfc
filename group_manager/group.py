"""What a program needs to run one group: its members, the weights on their way, and somebody to tell."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from fedgsp.aggregation import Mean
from fedgsp.channels import Channels
from fedgsp.encoding import rounded
from fedgsp.messages import (
    Cancel,
    Failure,
    FailureCode,
    GroupEvent,
    Member,
    ModelRef,
    Order,
    OrderKey,
    Part,
    Recall,
    Recalled,
    RelayMode,
    Release,
    RunGroupRequest,
    SendUp,
    Source,
    SourceKind,
    Start,
    TensorSpec,
    Train,
    Trained,
    Work,
)
from fedgsp.model_service import fetch
from fedgsp.model_store import ModelStore
from fedgsp.programs import PROGRAMS
from fedgsp.spill import spilling_room
from fedgsp.updates import update_of
from fedgsp.weights import Weights, WeightsError, check_same_tensors
from fedgsp.windows import machine
from group_manager.members import Members, Outcome, Ticket
from group_manager.reports import Reports

#: Longest wait for a top server that does not fetch what is handed to it.
HAND_OVER_TIMEOUT_S = 600.0
#: Models that wait here for the top server at once; bounds memory whatever the number of members.
MOST_HANDED = 4


class Group(Reports):
    """One group's run. Everything a program does to the world goes through here."""

    def __init__(
        self,
        request: RunGroupRequest,
        members: Members,
        store: ModelStore,
        channels: Channels,
        me: Source,
        tell: Callable[[GroupEvent], None],
    ) -> None:
        super().__init__(tell)
        self.request = request
        self._members = members
        self._store = store
        self._channels = channels
        self._me = me
        self._tickets: list[Ticket] = []
        self._makers: dict[str, Ticket] = {}  # model id -> the order that made it, or will
        parts = (*request.parts, *(member.start for member in request.members if member.start is not None))
        #: Models of earlier rounds -> the node that holds them; empty: the top server.
        self._earlier = {part.ref.id: part.node for part in parts if part.ref is not None}
        if request.start is not None and not request.parts:
            self._earlier[request.start.id] = ""
        #: Models that nodes get from each other -> who reads it, and where its holder is to be dialled.
        self._direct: dict[str, tuple[Member, Source]] = {}
        self._carrying: dict[str, asyncio.Task[None]] = {}
        self._carried: set[str] = set()  # models that this process asked for
        self._brought: set[str] = set()  # models that their makers bring, and then forget
        self._made: set[str] = set()  # models that it made itself
        self._handed: set[str] = set()  # models that stay here until the top server forgets them
        self._kept_starts: set[tuple[str, str]] = set()  # (node, model id) of starts that nodes keep for a while
        self._sent_up = 0
        self._released = 0
        self._checked = 0

    @property
    def options(self) -> Any:
        """The options of the program."""
        return PROGRAMS[self.request.program].read(self.request.program_options)

    # --- orders

    def key(self, task: str, position: int, attempt: int = 0) -> OrderKey:
        """The key of an order of this group."""
        request = self.request
        return OrderKey(request.round, task, request.group, position, attempt, request.run_id, request.serial)

    def submit(self, member: Member, key: OrderKey, work: Work) -> Ticket:
        """Sends an order to the node that hosts a member."""
        ticket = self._submit(member.node, Order(key, member.client, work))
        produces = getattr(work, "produces", "")
        if produces:
            self._makers[produces] = ticket
        if isinstance(work, Train) and work.reveal is not None:
            self._makers[update_of(produces)] = ticket
        if isinstance(work, Train) and work.bring:
            self._brought.add(produces)
        return ticket

    async def outcome(self, ticket: Ticket, in_turn: bool = True) -> Outcome:
        """What became of an order, at the latest when it stalls; one that is not `in_turn` had nobody to wait for."""
        return await self._members.outcome(ticket, self.request.stall_timeout_s, in_turn)

    def cancel(self, ticket: Ticket) -> None:
        """Calls an order off."""
        self._members.tell(ticket.node, Order(ticket.key, 0, Cancel()))

    def attached(self, node: str) -> bool:
        """Whether a node is there, perhaps after a break."""
        return self._members.attached(node)

    def holds(self, model_id: str) -> bool:
        """Whether the node that made a model still has it: not released, and not away for a moment, or restarted."""
        maker = self._makers.get(model_id)
        return maker is not None and self._members.stayed(maker)

    async def check(self, node: str) -> None:
        """Waits until a node has answered, or is known to be lost: its peers may notice before this process does."""
        self._checked += 1
        key = self.key("check", self._checked)
        await self.outcome(self._submit(node, Order(key, 0, Release(()))))

    async def recall(self, prefix: str, made: Iterable[tuple[Member, str]]) -> None:
        """Finds out which of the models that members made under another manager, with ids that begin so, are still
        there; nodes forget all others.
        """
        by_node: dict[str, list[str]] = {member.node: [] for member in self.request.members}
        for member, model_id in made:
            by_node.setdefault(member.node, []).append(model_id)
        asked = []
        for number, (node, model_ids) in enumerate(by_node.items()):
            order = Order(self.key("recall", number, self.request.attempt), 0, Recall(prefix, tuple(model_ids)))
            asked.append((self._submit(node, order), set(model_ids)))
        for ticket, wanted in asked:
            outcome = await self.outcome(ticket)
            if isinstance(outcome, Recalled):
                self._makers.update(dict.fromkeys(wanted.intersection(outcome.model_ids), ticket))

    def release(self, model_ids: list[str]) -> None:
        """Lets the holders, and this process, forget models."""
        self._release_at_nodes(model_ids)
        self._store.release(model_ids)

    def leave_with_client(self, model_id: str) -> None:
        """A model that its maker retains is no more of this group's business."""
        self._makers.pop(model_id, None)

    def forget_here(self, model_id: str) -> None:
        """A model that stays where it is, and was only looked at here."""
        self._store.release([model_id])

    async def hand_over(self, model_id: str) -> ModelRef | Failure:
        """Brings a model here, where it stays until the top server forgets it; its maker may forget it at once."""
        try:
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                await self._store.fewer_than(MOST_HANDED, self._handed)
        except TimeoutError:
            return Failure(FailureCode.STALLED, "the top server does not take what is handed to it")
        weights = await self.collect(model_id)
        if isinstance(weights, Failure):
            return weights
        self._handed.add(model_id)
        self._release_at_nodes([model_id])
        return weights.ref(model_id)

    async def with_update(self, trained: Trained) -> Trained:
        """The report of a member, whose revealed update is here by now; without it if it could not be had."""
        if trained.update is None:
            return trained
        handed = await self.hand_over(trained.update.id)
        return dataclasses.replace(trained, update=handed if isinstance(handed, ModelRef) else None)

    def _release_at_nodes(self, model_ids: list[str]) -> None:
        for model_id in model_ids:
            maker = self._makers.pop(model_id, None)
            if maker is not None and model_id not in self._brought:
                self._tell_release(maker.node, (model_id,))

    def _submit(self, node: str, order: Order) -> Ticket:
        ticket = self._members.submit(node, order)
        self._tickets.append(ticket)
        return ticket

    def _tell_release(self, node: str, model_ids: tuple[str, ...]) -> None:
        self._released += 1
        self._members.tell(node, Order(self.key("release", self._released), 0, Release(model_ids)))

    # --- where weights come from

    def start_of(self, member: Member, keep: bool) -> Start:
        """How a member gets the model that it starts from: its own start, or the group's."""
        ref = member.start.ref if member.start is not None else self.request.start
        assert ref is not None
        holder = self._earlier.get(ref.id)
        if holder == member.node:
            return Start(ref.id, (Source(SourceKind.OWN, member.node),), False, self.request.without_head)
        if keep:
            self._kept_starts.add((member.node, ref.id))
        top_server = Source(SourceKind.TOP_SERVER, "top server", self.request.start_address)
        by_manager = self.request.relay is RelayMode.MANAGER or holder != ""
        return Start(ref.id, (self._me if by_manager else top_server,), keep, self.request.without_head)

    def start_from(self, model_id: str, holder: Member, reader: Member) -> Start:
        """How a member gets what another member has trained, or will."""
        if holder.node == reader.node:
            return Start(model_id, (Source(SourceKind.LOCAL, holder.node),), without_head=self.request.without_head)
        sources = []
        if holder.peer_address and self.request.relay is not RelayMode.MANAGER:
            sources.append(Source(SourceKind.NODE, holder.node, holder.peer_address))
        if self.request.relay is not RelayMode.DIRECT:
            if sources:
                self._direct[model_id] = reader, sources[0]
            sources.append(self._me)
        return Start(model_id, tuple(sources), without_head=self.request.without_head)

    def start_here(self, model_id: str, member: Member, shared: bool) -> Start:
        """How a member gets what this manager made, for it alone or for several."""
        if shared:
            self._kept_starts.add((member.node, model_id))
        return Start(model_id, (self._me,), keep=shared)

    def drop_start(self, model_id: str) -> None:
        """Lets this process, and the nodes that keep it, forget what it made."""
        self._store.release([model_id])
        self._made.discard(model_id)
        for kept in [kept for kept in self._kept_starts if kept[1] == model_id]:
            self._kept_starts.remove(kept)
            self._tell_release(kept[0], (model_id,))

    async def wanted(self, model_id: str) -> None:
        """Somebody asks this manager for a model that it lacks: get it, once."""
        if model_id not in self._carrying:
            self._carried.add(model_id)
            self._carrying[model_id] = asyncio.create_task(self._carry(model_id), name=f"carry {model_id}")
        await asyncio.shield(self._carrying[model_id])

    def by_way_of_here(self, model_id: str) -> None:
        """A node gets a model from this manager; one that should have come from another node was rerouted."""
        reader, holder = self._direct.pop(model_id, (None, None))
        if reader is not None and holder is not None:
            reason = f"node {holder.name} could not be reached at {holder.address}: by way of the manager"
            self.rerouted(reader, reason)

    def arrived(self, model_id: str, trained: Trained) -> Trained | Failure:
        """A member's report, and its model is counted; a failure if it was to bring that, and none or another came."""
        if model_id not in self._brought:
            return trained
        if model_id not in self._store:
            return Failure(FailureCode.BAD_STREAM, f"model {model_id!r} did not come, though it was reported")
        weights = self._store.held(model_id)
        if trained.ref != weights.ref(model_id):
            # No offence of its maker's: anybody who knows the id may have sent it.
            return Failure(FailureCode.NO_SUCH_MODEL, f"what came as model {model_id!r} is not what was reported")
        self.count_relayed(weights)
        return trained

    def give_up(self, model_id: str) -> None:
        """Forgets what came of a member's model, and takes no more of it."""
        self._brought.discard(model_id)
        self._store.release([model_id])

    async def collect(self, model_id: str, expected: tuple[TensorSpec, ...] = ()) -> Weights | Failure:
        """A finished model, brought to this manager; a failure if it is not one of these tensors, if there are any."""
        try:
            if model_id not in self._store:
                await self.wanted(model_id)
            weights = await self._store.get(model_id)
            if expected:
                check_same_tensors(weights.tensors, expected, f"model {model_id!r}")
            return weights
        except WeightsError as error:
            return error.failure

    def handed_on(self, weights: Weights) -> Weights:
        """A model that this manager made, as it travels in this run."""
        training = self.request.training
        return rounded(weights) if training is not None and training.bfloat16 else weights

    def keep(self, model_id: str, weights: Weights) -> ModelRef:
        """Keeps a model that this manager made until the top server has fetched it."""
        self._store.put(model_id, weights)
        self._made.add(model_id)
        return weights.ref(model_id)

    async def _carry(self, model_id: str) -> None:
        try:
            if self.request.parts and self.request.start is not None and model_id == self.request.start.id:
                self._store.put(model_id, await self._mean_of(self.request.parts))
            elif self._earlier.get(model_id) == "":
                channel = self._channels.to(self.request.start_address)
                weights = await fetch(
                    channel, model_id, None, self.request.max_model_bytes, make_room=spilling_room, promised=False
                )
                self._store.put(model_id, weights)
            else:
                await self._send_up(model_id)
        except WeightsError as error:
            self._store.fail(model_id, error.failure)
        except ValueError as error:  # parts that do not fit each other: whoever waits must hear of it
            self._store.fail(model_id, Failure(FailureCode.WRONG_SHAPES, str(error)))
        finally:
            self._carrying.pop(model_id, None)

    async def _mean_of(self, parts: tuple[Part, ...]) -> Weights:
        mean = Mean(weighted=True)
        lost = Failure(FailureCode.NO_SUCH_MODEL, "the start has no parts")
        for part in parts:
            assert part.ref is not None
            weights = await self.collect(part.ref.id, self.request.tensors)
            if isinstance(weights, Failure):
                # Lost with its node, perhaps: the others' mean is what the group, and this client, go on from.
                lost = weights
                self.part_lost(part.client, weights)
                continue
            await asyncio.to_thread(mean.fold, weights, part.weight)
            self._store.release([part.ref.id])
        if mean.empty:
            raise WeightsError(lost.code, lost.detail)
        return await asyncio.to_thread(lambda: self.handed_on(mean.result()))

    async def _send_up(self, model_id: str) -> None:
        maker = self._makers.get(model_id)
        if maker is not None and not self._members.stayed(maker):
            raise WeightsError(FailureCode.NODE_LOST, f"node {maker.node} is gone, and model {model_id!r} with it")
        node = maker.node if maker is not None else self._earlier.get(model_id, "")
        if not node:
            raise WeightsError(FailureCode.NO_SUCH_MODEL, f"nobody is known to have model {model_id!r}")
        self._sent_up += 1
        key = self.key("send-up", self._sent_up)
        ticket = self._submit(node, Order(key, 0, SendUp(model_id, maker is None, machine())))
        if maker is not None:
            # It may not be made yet: a chain that stalls is the program's business, and this wait ends with it.
            await asyncio.wait([maker.outcome, ticket.outcome], return_when=asyncio.FIRST_COMPLETED)
        outcome = await self.outcome(ticket)
        if isinstance(outcome, Failure):
            raise WeightsError(outcome.code, outcome.detail)
        if model_id not in self._store:
            raise WeightsError(FailureCode.NO_SUCH_MODEL, f"node {node} did not send model {model_id!r}, but said so")
        self.count_relayed(self._store.held(model_id))

    def can_provide(self, model_id: str) -> bool:
        """Whether this group knows where a model is, and has to ask for it."""
        start = self.request.start
        made = model_id in self._makers and model_id not in self._brought
        return made or model_id in self._earlier or (start is not None and model_id == start.id)

    def carries(self, model_id: str) -> bool:
        """Whether this process waits for a model: it has asked for it, or its maker brings it."""
        maker = self._makers.get(model_id) if model_id in self._brought else None
        return model_id in self._carrying or (maker is not None and not maker.outcome.done())

    def close(self, result_id: str) -> None:
        """Calls off what is still on its way; all forget the group's models, but for its result, kept here."""
        for ticket in self._tickets:
            if not ticket.outcome.done():
                self.cancel(ticket)
        for model_id, maker in self._makers.items():
            self._tell_release(maker.node, (model_id,))
        for node, model_id in self._kept_starts:
            self._tell_release(node, (model_id,))
        for task in self._carrying.values():
            task.cancel()
        self._store.release((self._carried | self._brought | self._made) - self._handed - {result_id})
