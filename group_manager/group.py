"""What a program gets to run one group."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from fedgsp.connections.channels import Channels
from fedgsp.errors import RunError
from fedgsp.messages import (
    Failure,
    GroupEvent,
    GroupResult,
    Member,
    ModelRef,
    RelayMode,
    RunGroupRequest,
    Source,
    SourceKind,
    Start,
)
from fedgsp.programs import PROGRAMS
from fedgsp.security.tickets import Issuer
from group_manager.ledger import Ledger, Origin
from group_manager.members import Members
from group_manager.models import Models
from group_manager.orders import Orders, Reports
from group_manager.shelves import Shelf
from group_manager.tickets import Tickets


class Group:
    """Everything that a program needs to run one group.

    The group has its request, its orders to nodes, the weights at this manager, and its reports to the top server. It
    says from where members get the models that they start from, by the relay mode and the ledger.
    """

    def __init__(
        self,
        request: RunGroupRequest,
        members: Members,
        shelf: Shelf,
        channels: Channels,
        manager: Source,
        issuer: Issuer,
        tell: Callable[[GroupEvent], None],
    ) -> None:
        self.request = request
        self.program = PROGRAMS[request.program]
        self.ledger = Ledger(request)
        self.reports = Reports(tell)
        self.members = members
        self._members_of = Counter(member.node for member in request.members)
        tickets = Tickets(issuer, manager.name, request)
        self.orders = Orders(request, members, self.ledger, tickets)
        self.manager = manager
        self._playing: asyncio.Task[GroupResult | Failure] | None = None
        self.models = Models(request, self.ledger, self.orders, self.reports, shelf, channels, tickets)

    async def play(self) -> GroupResult | Failure:
        """Runs the program of the group to its end. Raises RunError if this manager has no room for a model."""
        playing = self._playing = asyncio.create_task(self._play(), name=f"program of group {self.request.group}")
        try:
            either: list[asyncio.Future[Any]] = [playing, self.models.full]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                return playing.result()
            raise RunError(f"the group manager is full: {self.models.full.result()}", "make room on its machine")
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _play(self) -> GroupResult | Failure:
        await self.models.make_start()
        outcome: GroupResult | Failure = await self.program.load()(self)
        return outcome

    def result(self, ref: ModelRef | None = None, samples: int = 0) -> GroupResult:
        """The group's result so far; without `ref`, the program makes no model."""
        told = self.reports
        return GroupResult(
            ref or ModelRef(""), samples, told.bytes_direct, told.bytes_relayed, bytes_travelled=told.bytes_travelled
        )

    @property
    def options(self) -> Any:
        """The options of the program, as the dataclass that its declaration names."""
        return self.program.read(self.request.program_options)

    def is_alone(self, member: Member) -> bool:
        """Whether no other member of the group is on the node of this one."""
        return self._members_of[member.node] == 1

    def given_start(self, member: Member, keep: bool) -> Start:
        """The start that the request gives a member: its own, or else that of the group.

        `keep`: the node keeps the model, because several of its clients start from it.
        """
        request = self.request
        ref = member.start.ref if member.start is not None else request.start
        assert ref is not None
        record = self.ledger.look(ref.id)
        if record.origin is Origin.AT_NODE and record.node == member.node:
            own = (Source(SourceKind.OWN, member.node),)
            return Start(ref.id, own, without_head=request.without_head, digest=ref.digest)
        if keep:
            self.ledger.keep(ref.id, member.node)
        source = self.manager
        handed_on = request.hand_on_start and member.start is None
        if request.relay is not RelayMode.MANAGER and record.origin is Origin.TOP_SERVER and not handed_on:
            source = Source(SourceKind.TOP_SERVER, "top server", request.start_address)
        return Start(ref.id, (source,), keep, request.without_head, ref.digest)

    def trained_start(self, holder: Member, model_id: str, reader: Member, by_manager: bool = False) -> Start:
        """The model that another member has trained, or will train, as the start of `reader`.

        `by_manager`: it comes by way of this manager, although its node could be dialled.
        """
        relay, sources = self.request.relay, [Source(SourceKind.LOCAL, holder.node)]
        if holder.node != reader.node:
            dialled = bool(holder.peer_address) and relay is not RelayMode.MANAGER and not by_manager
            sources = [Source(SourceKind.NODE, holder.node, holder.peer_address)] if dialled else []
            if relay is not RelayMode.DIRECT:
                if by_manager:
                    self.ledger.detour(model_id)  # it is known already that it comes this way
                if dialled:
                    self.ledger.expect_direct(model_id, reader, sources[0])
                sources.append(self.manager)
        return Start(model_id, tuple(sources), without_head=self.request.without_head)

    def nobody_trained(self) -> Failure:
        """The failure of a group in which every member was skipped."""
        reason = self.reports.reason
        return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")

    def close(self, result_id: str) -> None:
        """Cancels open orders. The nodes and this manager then forget the group's models.

        This manager keeps the result, and the models that the top server has yet to fetch (RESERVED in the ledger).
        """
        if self._playing is not None:
            self._playing.cancel()  # now, because it would take one more step and order something
        self.orders.close()
        self.models.close(result_id)
