"""What a program needs to run one group: its members, the weights on their way, and somebody to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedgsp.channels import Channels
from fedgsp.messages import (
    Cancel,
    Evaluated,
    Failure,
    GroupEvent,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    Order,
    OrderKey,
    RelayMode,
    Release,
    Rerouted,
    Result,
    RunGroupRequest,
    SendUp,
    Source,
    SourceKind,
    Start,
    Trained,
    Work,
)
from fedgsp.model_service import fetch
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights, WeightsError
from group_manager.members import Members, Outcome, Ticket


class Group:
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
        self.request = request
        self._members = members
        self._store = store
        self._channels = channels
        self._me = me
        self._tell = tell
        self._holders: dict[str, str] = {}  # model id -> node that holds it, or has promised it
        self._carried: dict[str, asyncio.Task[None]] = {}
        self._sent_up = 0
        self._released = 0
        self.bytes_direct = 0
        self.bytes_relayed = 0

    # --- orders

    def key(self, task: str, position: int, attempt: int = 0) -> OrderKey:
        """The key of an order of this group."""
        return OrderKey(self.request.round, task, self.request.group, position, attempt)

    def submit(self, member: Member, key: OrderKey, work: Work) -> Ticket:
        """Sends an order to the node that hosts a member."""
        produces = getattr(work, "produces", "")
        if produces:
            self._holders[produces] = member.node
        return self._members.submit(member.node, Order(key, member.client, work))

    async def outcome(self, ticket: Ticket) -> Outcome:
        """What became of an order, at the latest when it stalls."""
        return await self._members.outcome(ticket, self.request.stall_timeout_s)

    def cancel(self, ticket: Ticket) -> None:
        """Calls an order off."""
        self._members.tell(ticket.node, Order(ticket.key, 0, Cancel()))

    def attached(self, node: str) -> bool:
        """Whether a node is still there."""
        return self._members.attached(node)

    def release(self, model_ids: list[str]) -> None:
        """Lets the holders, and this process, forget models."""
        for model_id in model_ids:
            node = self._holders.pop(model_id, None)
            if node is not None:
                self._tell_release(node, (model_id,))
        self._store.release(model_ids)

    def release_start(self) -> None:
        """Lets all members forget the start model."""
        if self.request.start is not None:
            ids = (self.request.start.id,)
            for node in {member.node for member in self.request.members}:
                self._tell_release(node, ids)
            self._store.release(ids)

    def _tell_release(self, node: str, model_ids: tuple[str, ...]) -> None:
        self._released += 1
        self._members.tell(node, Order(self.key("release", self._released), 0, Release(model_ids)))

    # --- where weights come from

    def start_of_group(self, keep: bool) -> Start:
        """How a member gets the group's start model."""
        assert self.request.start is not None
        top_server = Source(SourceKind.TOP_SERVER, "top server", self.request.start_address)
        by_manager = self.request.relay is RelayMode.MANAGER
        return Start(self.request.start.id, (self._me if by_manager else top_server,), keep)

    def start_from(self, model_id: str, holder: Member, reader: Member) -> Start:
        """How a member gets what another member has trained, or will."""
        if holder.node == reader.node:
            return Start(model_id, (Source(SourceKind.LOCAL, holder.node),))
        sources = []
        if holder.peer_address and self.request.relay is not RelayMode.MANAGER:
            sources.append(Source(SourceKind.NODE, holder.node, holder.peer_address))
        if self.request.relay is not RelayMode.DIRECT:
            sources.append(self._me)
        return Start(model_id, tuple(sources))

    async def wanted(self, model_id: str) -> None:
        """Somebody asks this manager for a model that it lacks: get it, once."""
        if model_id not in self._carried:
            self._carried[model_id] = asyncio.create_task(self._carry(model_id), name=f"carry {model_id}")
        await asyncio.shield(self._carried[model_id])

    async def collect(self, model_id: str) -> Weights | Failure:
        """A member's model, brought to this manager."""
        try:
            if model_id not in self._store:
                await self.wanted(model_id)
            return await self._store.get(model_id)
        except WeightsError as error:
            return error.failure

    def keep(self, model_id: str, weights: Weights) -> ModelRef:
        """Keeps a model that this manager made until the top server has fetched it."""
        self._store.put(model_id, weights)
        return weights.ref(model_id)

    async def _carry(self, model_id: str) -> None:
        try:
            if self.request.start is not None and model_id == self.request.start.id:
                channel = self._channels.to(self.request.start_address)
                weights = await fetch(channel, model_id, None, self.request.max_model_bytes)
                self._store.put(model_id, weights)
            else:
                await self._send_up(model_id)
        except WeightsError as error:
            self._store.fail(model_id, error.failure)
        finally:
            self._carried.pop(model_id, None)

    async def _send_up(self, model_id: str) -> None:
        node = self._holders[model_id]
        self._sent_up += 1
        key = self.key("send-up", self._sent_up)
        # The holder may not have it yet: a chain that stalls is the program's business, and this wait ends with it.
        outcome = await self._members.submit(node, Order(key, 0, SendUp(model_id))).outcome
        if isinstance(outcome, Failure):
            raise WeightsError(outcome.code, outcome.detail)
        self.bytes_relayed += (await self._store.get(model_id)).buffer.nbytes

    def can_provide(self, model_id: str) -> bool:
        """Whether this group knows where a model is."""
        start = self.request.start
        return model_id in self._holders or (start is not None and model_id == start.id)

    async def close(self) -> None:
        """Stops what is still on its way, and lets the members forget their models; this process keeps its own."""
        for model_id, node in self._holders.items():
            self._tell_release(node, (model_id,))
        for task in list(self._carried.values()):
            task.cancel()
        await asyncio.gather(*self._carried.values(), return_exceptions=True)

    # --- what the top server hears

    def done(self, member: Member, position: int, result: Result) -> None:
        """A member finished."""
        if isinstance(result, Trained | Evaluated) and result.source is not None:
            if result.source.kind is SourceKind.NODE:
                self.bytes_direct += result.bytes
            else:
                self.bytes_relayed += result.bytes
        self._tell(GroupEvent(MemberDone(member.client, position, result)))

    def skipped(self, member: Member, failure: Failure) -> None:
        """A member takes no part."""
        self._tell(GroupEvent(MemberSkipped(member.client, failure)))

    def rerouted(self, member: Member, reason: str) -> None:
        """Weights went another way than declared."""
        self._tell(GroupEvent(Rerouted(member.client, reason)))
