"""What a program needs to run one group: its members, the weights on their way, and somebody to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedgsp.channels import Channels
from fedgsp.messages import (
    Cancel,
    Evaluated,
    Failure,
    FailureCode,
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

#: Longest wait for a finished model; above the deadline that a node sets for its upload.
COLLECT_TIMEOUT_S = 660.0


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
        self._tickets: list[Ticket] = []
        self._makers: dict[str, Ticket] = {}  # model id -> the order that made it, or will
        self._carrying: dict[str, asyncio.Task[None]] = {}
        self._carried: set[str] = set()  # models that this process asked for
        self._start_kept = False
        self._sent_up = 0
        self._released = 0
        self._checked = 0
        self.bytes_direct = 0
        self.bytes_relayed = 0

    # --- orders

    def key(self, task: str, position: int, attempt: int = 0) -> OrderKey:
        """The key of an order of this group."""
        return OrderKey(self.request.round, task, self.request.group, position, attempt)

    def submit(self, member: Member, key: OrderKey, work: Work) -> Ticket:
        """Sends an order to the node that hosts a member."""
        ticket = self._submit(member.node, Order(key, member.client, work))
        produces = getattr(work, "produces", "")
        if produces:
            self._makers[produces] = ticket
        return ticket

    async def outcome(self, ticket: Ticket) -> Outcome:
        """What became of an order, at the latest when it stalls."""
        return await self._members.outcome(ticket, self.request.stall_timeout_s)

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

    def release(self, model_ids: list[str]) -> None:
        """Lets the holders, and this process, forget models."""
        for model_id in model_ids:
            maker = self._makers.pop(model_id, None)
            if maker is not None:
                self._tell_release(maker.node, (model_id,))
        self._store.release(model_ids)

    def _submit(self, node: str, order: Order) -> Ticket:
        ticket = self._members.submit(node, order)
        self._tickets.append(ticket)
        return ticket

    def _tell_release(self, node: str, model_ids: tuple[str, ...]) -> None:
        self._released += 1
        self._members.tell(node, Order(self.key("release", self._released), 0, Release(model_ids)))

    # --- where weights come from

    def start_of_group(self, keep: bool) -> Start:
        """How a member gets the group's start model."""
        assert self.request.start is not None
        self._start_kept = self._start_kept or keep
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
        if model_id not in self._carrying:
            self._carried.add(model_id)
            self._carrying[model_id] = asyncio.create_task(self._carry(model_id), name=f"carry {model_id}")
        await asyncio.shield(self._carrying[model_id])

    async def collect(self, model_id: str) -> Weights | Failure:
        """A finished model, brought to this manager."""
        try:
            async with asyncio.timeout(COLLECT_TIMEOUT_S):
                if model_id not in self._store:
                    await self.wanted(model_id)
                return await self._store.get(model_id)
        except WeightsError as error:
            return error.failure
        except TimeoutError:
            return Failure(FailureCode.STALLED, f"model {model_id!r} did not come in {COLLECT_TIMEOUT_S:.0f} s")

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
            self._carrying.pop(model_id, None)

    async def _send_up(self, model_id: str) -> None:
        maker = self._makers[model_id]
        if not self._members.stayed(maker):
            raise WeightsError(FailureCode.NODE_LOST, f"node {maker.node} is gone, and model {model_id!r} with it")
        self._sent_up += 1
        key = self.key("send-up", self._sent_up)
        # The holder may not have it yet: a chain that stalls is the program's business, and this wait ends with it.
        outcome = await self._submit(maker.node, Order(key, 0, SendUp(model_id))).outcome
        if isinstance(outcome, Failure):
            raise WeightsError(outcome.code, outcome.detail)
        self.bytes_relayed += (await self._store.get(model_id)).buffer.nbytes

    def can_provide(self, model_id: str) -> bool:
        """Whether this group knows where a model is."""
        start = self.request.start
        return model_id in self._makers or (start is not None and model_id == start.id)

    def close(self, result_id: str) -> None:
        """Calls off what is still on its way; all forget the group's models, but for its result, kept here."""
        for ticket in self._tickets:
            if not ticket.outcome.done():
                self.cancel(ticket)
        for model_id, maker in self._makers.items():
            self._tell_release(maker.node, (model_id,))
        if self._start_kept and self.request.start is not None:
            for node in {member.node for member in self.request.members}:
                self._tell_release(node, (self.request.start.id,))
        for task in self._carrying.values():
            task.cancel()
        self._store.release(self._carried - {result_id})

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
