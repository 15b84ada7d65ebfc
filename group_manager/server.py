"""The server of a group manager: its gRPC services, for nodes and for the top server."""

import asyncio
import contextlib
import dataclasses
import logging
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import grpc.aio

from fedgsp import wire
from fedgsp.connections.addresses import advertised, is_near, split_address
from fedgsp.connections.channels import SHUTDOWN_GRACE_S, Channels, first_message, refuse, start_server
from fedgsp.connections.handlers import Opening
from fedgsp.connections.liveness import return_s
from fedgsp.errors import UserError
from fedgsp.identity import TOP_SERVER, Identity, is_name, manager, node
from fedgsp.limits.gate import decoded, host_of
from fedgsp.messages import (
    Attached,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    NodeReport,
    Order,
    Release,
    RunGroupRequest,
    Served,
    Source,
    SourceKind,
    TensorSpec,
)
from fedgsp.processes.awake import Awake, always
from fedgsp.processes.lifecycle import beside
from fedgsp.security.access import ANSWER, AccessControl, Caller, caller
from fedgsp.security.revocation import Revocations
from fedgsp.security.tickets import Door, Issuer, Verb
from fedgsp.security.tls import Tls
from fedgsp.settings.managers import ManagerSettings
from fedgsp.tensors import memory
from fedgsp.tensors.spill import growing_room
from fedgsp.tensors.weights import Weights, WeightsError, require
from fedgsp.to_the_end import cancelled_elsewhere
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.landing import Landing
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import enrolment_pb2, group_pb2, group_pb2_grpc, order_pb2, order_pb2_grpc
from group_manager.comings import Comings
from group_manager.group import Group
from group_manager.ledger import Origin
from group_manager.members import Members
from group_manager.requests import refusal
from group_manager.sessions import Session
from group_manager.shelves import Shelves

logger = logging.getLogger(__name__)

#: Longest time, in seconds, between the attachments of two nodes of a group.
ATTACH_TIMEOUT_S = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class OrderServicer(order_pb2_grpc.OrderServiceServicer):
    """For nodes: a stream of reports comes in, a stream of orders goes out."""

    _members: Members
    _name: str
    _run_id: str
    #: The host at which others dial this manager.
    _own_host: str = ""
    #: With its keys, this manager shows nodes that it is one of the run.
    _issuer: Issuer | None = None
    _comings: Comings = dataclasses.field(default_factory=lambda: Comings(logger))

    async def Attach(  # type: ignore[override]  # noqa: N802
        self, requests: AsyncIterator[order_pb2.NodeReport], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[order_pb2.Order | Opening]:
        """Serves one node's session until either side ends it."""
        first = await first_message(requests)
        hello = (await decoded(NodeReport, first, context)).kind if first is not None else None
        if not isinstance(hello, Attached) or not is_name(hello.node):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the first report must say which node attaches")
        if (hello.manager, hello.run_id) != (self._name, self._run_id):
            wanted = f"manager {hello.manager[:100]!r} of run {hello.run_id[:100]!r}"
            self._comings.refused(f"node={hello.node!r} was refused: it looks for {wanted}")
            # Who guesses names learns neither that of this manager nor the id of the run.
            why = "this is not the manager that you were told to attach to, or another run has taken its address"
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why)
        if not (caller().may(self._name) and caller().is_node(hello.node)):
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, "the ticket is not for this node")
        if why := self._comings.why_not(hello.node):
            self._comings.refused(f"node={hello.node} was refused: {why}")
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        yield _shown(self._issuer, node(hello.node), self._name)
        shown = (hello.node, caller().certificate, caller().process)
        if why := self._members.in_the_way(*shown):
            self._comings.refused(f"node={hello.node} was refused, which comes from {caller().address}: {why}")
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, why)
        session = await self._members.attach(*shown)
        session.address = caller().address
        session.host = host_of(context.peer())
        # From this machine, by its loopback or not.
        session.near = is_near(session.host) or session.host == self._own_host
        outbox = session.outbox  # if the node comes back by another connection, the session has another one
        self._comings.tell(hello.node, "attachment", "attached")
        reading = asyncio.create_task(self._read(requests, session, outbox, context), name=f"reports of {hello.node}")
        try:
            while (order := await outbox.get()) is not None:
                yield wire.encode(order)
        finally:
            reading.cancel()
            await self._members.detach(session, outbox)
            self._comings.tell(hello.node, "departure", "left")

    async def _read(
        self,
        requests: AsyncIterator[order_pb2.NodeReport],
        session: Session,
        outbox: asyncio.Queue[Order | None],
        context: grpc.aio.ServicerContext,
    ) -> None:
        try:
            async for proto in requests:
                if proto.HasField("progress") and not session.progress_is_due():
                    continue
                kind = (await decoded(NodeReport, proto, context)).kind
                if kind is not None and not isinstance(kind, Attached):
                    self._members.report(session, kind)
        except grpc.aio.AioRpcError as error:
            self._comings.tell(session.node, "loss", f"is lost: {error.code().name}")
        except grpc.aio.AbortError as error:
            self._comings.tell(session.node, "disconnection", f"was disconnected: {error}", logging.WARNING)
        finally:
            await self._members.detach(session, outbox)


class GroupServicer(group_pb2_grpc.GroupServiceServicer):
    """For the top server: runs groups, and keeps each result until the top server forgets it."""

    def __init__(
        self,
        members: Members,
        store: ModelStore,
        channels: Channels,
        me: Source,
        issuer: Issuer,
        door: Door,
        revoked: Revocations | None = None,
    ) -> None:
        self._members = members
        self._store = store
        self._shelves = Shelves(store)
        self._channels = channels
        self._me = me
        self._issuer = issuer
        self._door = door
        self._revoked = revoked or Revocations()
        self._groups: list[Group] = []

    @property
    def max_model_bytes(self) -> int:
        """Bytes of the largest model that this manager takes from a node now."""
        return max((group.request.max_model_bytes for group in self._groups), default=0)

    async def start_of(self, model_id: str) -> Weights | None:
        """The start of the group of a model, as a base to code that model against; it may be on its nodes, too.

        None if that is the model itself, or if this manager could only get it from a node.
        """
        for group in self._groups:
            start = group.request.start
            if start is None or start.id == model_id or not group.ledger.knows(model_id):
                continue
            if start.id in self._store or group.ledger.look(start.id).origin is Origin.TOP_SERVER:
                with contextlib.suppress(WeightsError):  # the model can come without a base
                    await group.models.wanted(start.id)
                    return await self._store.get(start.id)
        return None

    async def wanted(self, model_id: str) -> None:
        """Fetches a model for a node that asks for it, if it is not here.

        Raises WeightsError if it is not here and no group knows it.
        """
        tried: set[Group] = set()
        while group := self._provider(model_id, tried):
            tried.add(group)
            if model_id not in self._store:
                group.models.by_way_of_here(model_id)
            with cancelled_elsewhere():
                if why := await group.models.wanted(model_id):
                    group.models.note_full(why)
            if group in self._groups:
                return self._share(model_id)
            # It has ended meanwhile and let the model go, and the caller may be of another group that has it.
        require(
            model_id in self._store,
            FailureCode.NO_SUCH_MODEL,
            f"no group of this manager knows model {model_id!r}",
        )

    def _share(self, model_id: str) -> None:
        """Each group that starts from a model has it until its own end, whichever group has brought it here."""
        for group in self._groups:
            start = group.request.start
            if start is not None and start.id == model_id:
                group.models.join(model_id)

    def _provider(self, model_id: str, tried: Collection[Group]) -> Group | None:
        """A group that knows from where to get a model, and was not tried."""
        groups = (group for group in self._groups if group not in tried)
        return next((group for group in groups if group.ledger.provides(model_id)), None)

    def served(self, model_id: str, reader: Caller, size: int) -> None:
        """Tells the top server that a model of a running group was given to another process."""
        for group in self._groups:
            if group.ledger.knows(model_id):
                proven = str(reader.proven) if reader.proven is not None else ""
                group.reports.tell(Served(model_id, str(reader.reader), proven, size))
                return

    def expected(self, model_id: str) -> bool:
        """Whether an upload of this model is expected."""
        return any(group.ledger.expects(model_id) or model_id in group.models.landings for group in self._groups)

    def tensors_of(self, model_id: str) -> tuple[TensorSpec, ...] | None:
        """The tensors that an upload must have; None if they are not known."""
        found = (group.models.tensors_of(model_id) for group in self._groups)
        return next((tensors for tensors in found if tensors is not None), None)

    def no_room(self, model_id: str, why: Failure) -> None:
        """This manager has no memory or no disk for an upload.

        Of a model whose tensors are not known, the size is only what its sender says: the sender has failed.
        """
        for group in self._groups:
            if group.ledger.expects(model_id) and group.models.tensors_of(model_id) is not None:
                group.models.no_room[model_id] = why.detail

    def landing(self, model_id: str) -> Landing | None:
        """Where the upload of a model goes; None for the store."""
        found = (group.models.landings.get(model_id) for group in self._groups)
        return next((landing for landing in found if landing is not None), None)

    async def RunGroup(  # type: ignore[override]  # noqa: N802
        self, request: group_pb2.RunGroupRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[group_pb2.GroupEvent | Opening]:
        """Runs one group. The last event is its result, or the failure that ended it."""
        yield _shown(self._issuer, TOP_SERVER, self._me.name)
        asked = wire.decode(RunGroupRequest, request)
        if wrong := refusal(asked):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, wrong)
        self._door.play(asked.run_id, asked.round)
        events: asyncio.Queue[GroupEvent] = asyncio.Queue()
        trained = {hop.member.client for hop in asked.finished if hop.member is not None}
        parts = () if trained else asked.parts  # a chain that goes on needs no start
        needed = {member.node for member in asked.members}.union(part.node for part in parts if part.node)
        missing = await self._members.wait_for(needed, ATTACH_TIMEOUT_S)
        there = tuple(member for member in asked.members if member.node not in missing)
        shelf, present = self._shelves.add(), dataclasses.replace(asked, members=there)
        group = Group(present, self._members, shelf, self._channels, self._me, self._issuer, events.put_nowait)
        for member in asked.members:
            if member.node in missing and member.client not in trained:  # of those, the chain says what it lacks
                group.reports.skipped(member, self._not_attached(member.node))
        self._groups.append(group)
        running = asyncio.create_task(_run(group, events), name=f"group {asked.group}")
        result_id = ""
        try:
            while True:
                event = await events.get()
                if isinstance(event.kind, GroupResult) and event.kind.ref is not None:
                    result_id = event.kind.ref.id
                yield wire.encode(event)
                if isinstance(event.kind, GroupResult | Failure):
                    return
        finally:
            # The caller hangs up once it has the result, and that cancels any await: nothing may wait before close.
            running.cancel()
            self._groups.remove(group)
            group.close(result_id)
            await asyncio.gather(running, return_exceptions=True)
            memory.drop_spare()

    async def Forget(  # noqa: N802
        self, request: order_pb2.Release, context: grpc.aio.ServicerContext
    ) -> group_pb2.ForgetResponse:
        """Forgets models that the top server has fetched."""
        self._store.release(wire.decode(Release, request).model_ids)
        memory.drop_spare()  # many managers may be idle at the same time
        return group_pb2.ForgetResponse()

    async def Revoke(  # noqa: N802
        self, request: enrolment_pb2.Revoked, context: grpc.aio.ServicerContext
    ) -> enrolment_pb2.RevokeResponse:
        """Ends the calls of nodes that were revoked, their sessions too, and takes no further ones."""
        self._revoked.replace(request.enrolments)
        return enrolment_pb2.RevokeResponse()

    def _not_attached(self, node: str) -> Failure:
        return Failure(
            FailureCode.NODE_LOST,
            f"node {node} had joined, and did not attach to {self._me.name} at {self._me.address} in"
            f" {ATTACH_TIMEOUT_S:.0f} s; if its log says that this address does not answer, its network lets it reach"
            " the top server, but not the ports of group managers (--manager-ports)",
        )


def _shown(issuer: Issuer | None, reader: Identity, name: str) -> Opening:
    """The answer to what the caller asks this manager, with a key that only the run and that caller have."""
    asked = caller().question
    return Opening(((ANSWER, issuer.answer(reader, name, asked)),)) if issuer is not None and asked else Opening()


async def _run(group: Group, events: asyncio.Queue[GroupEvent]) -> None:
    try:
        with group.program.guard():
            outcome = await group.play()
    except UserError as error:
        outcome = Failure(FailureCode.UNSPECIFIED, str(error))
    except Exception as error:  # the top server must learn of a bug, and why the group ended
        logger.exception("group=%d", group.request.group)
        outcome = Failure(FailureCode.UNSPECIFIED, f"{type(error).__name__}: {error}")
    events.put_nowait(GroupEvent(outcome))


@asynccontextmanager
async def serving(settings: ManagerSettings, issuer: Issuer, tls: Tls | None = None) -> AsyncIterator[str]:
    """The group manager serves while the body runs, which gets the address that others dial."""
    name, lost_after_s, insecure = settings.name, settings.lost_after, settings.insecure
    awake = Awake(always)
    members, store, revoked = Members(return_s(lost_after_s), awake.time), ModelStore(), Revocations()
    door = Door(issuer.key_of(manager(name)))
    guard = AccessControl(
        dict.fromkeys((Verb.ATTACH, Verb.LEAD, Verb.FETCH, Verb.UPLOAD), door), tls is not None, revoked
    )
    async with (
        beside(awake.keep_looking(), "clock"),
        Channels(tls, lost_after_s, insecure, every_host=settings.top_host) as channels,
    ):
        server, bound = await start_server(settings.listen, [], guard, tls, lost_after_s, insecure)
        address = advertised(settings.advertise, bound)
        me = Source(SourceKind.MANAGER, name, address)
        groups = GroupServicer(members, store, channels, me, issuer, door, revoked)
        bases = Bases(settings.wire, groups.start_of)
        models = ModelServicer(
            store,
            groups.wanted,
            groups.expected,
            lambda: groups.max_model_bytes,
            growing_room,
            groups.served,
            bases,
            groups.landing,
            groups.no_room,
            groups.tensors_of,
        )
        group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)
        order_pb2_grpc.add_OrderServiceServicer_to_server(
            OrderServicer(members, name, settings.run, split_address(address)[0], issuer), server
        )
        models.add_to(server)
        try:
            yield address
        finally:
            await server.stop(SHUTDOWN_GRACE_S)


async def run(settings: ManagerSettings, run_key: bytes, tls: Tls | None) -> None:
    """Writes the address that others dial to standard output and serves until it is cancelled."""
    async with serving(settings, Issuer(run_key), tls) as address:
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
