"""A manager and nodes that are attached to it over real streams, all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from fedgsp import Task
from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import (
    Attached,
    Cancel,
    Done,
    Failed,
    Fetched,
    Member,
    Order,
    OrderKey,
    Progress,
    Source,
    SourceKind,
    Start,
    Train,
    TrainingSettings,
    Work,
)
from fedgsp.security.tickets import Door
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc, order_pb2_grpc
from fedgsp_node.clients import Clients
from fedgsp_node.connections.attachment import Attachment
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager.members import Members
from group_manager.server import GroupServicer, OrderServicer
from group_manager.sessions import Session
from tests.support.callers import ISSUER
from tests.support.serving import serving

SETTINGS = TrainingSettings("sgd", 1, 7, 0.05, seed=3)
ENDLESS = TrainingSettings("sgd", 10**9, 7, 0.0, seed=3)


class Watching(Members):
    """Says which orders have been shown to move, once they have."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: asyncio.Future[set[int]] = asyncio.get_running_loop().create_future()

    def report(self, session: Session, kind: Done | Failed | Fetched | Progress) -> None:
        super().report(session, kind)
        if isinstance(kind, Progress) and not self.moved.done():
            positions = {progress.key.position for progress in kind.orders if progress.key and progress.mark > 0}
            if len(positions) > 1:  # a report may come before the second order has
                self.moved.set_result(positions)


@dataclass
class Manager:
    """A manager's services at an address."""

    members: Watching
    store: ModelStore
    served: Any
    groups: GroupServicer

    def send(self, work: Work, client: int = 0, position: int = 0, node: str = "n0") -> Any:
        return self.members.submit(node, Order(OrderKey(1, "some", 0, position, 0, "run"), client, work))

    async def result(self, ticket: Any) -> Any:
        return await self.members.outcome(ticket, 30)

    def call_off(self, ticket: Any) -> None:
        self.members.tell(ticket.node, Order(ticket.key, 0, Cancel()))


@asynccontextmanager
async def manager() -> AsyncIterator[Manager]:
    members, store = Watching(), ModelStore()
    async with Channels() as channels:
        me = Source(SourceKind.MANAGER, "m0", "not yet known")
        groups = GroupServicer(members, store, channels, me, ISSUER, Door())
        models = ModelServicer(store, groups.wanted, groups.expected, lambda: groups.max_model_bytes)

        def register(server: grpc.aio.Server) -> None:
            order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run", "", ISSUER), server)
            group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)
            models.add_to(server)

        async with serving(register) as served:
            groups._me = Source(SourceKind.MANAGER, "m0", served.address)
            yield Manager(members, store, served, groups)


@dataclass
class Node:
    """A real node's parts."""

    name: str
    clients: Clients
    store: ModelStore = field(default_factory=ModelStore)
    slot: Slot = field(default_factory=Slot)
    peer_address: str = ""
    ended: asyncio.Task[tuple[bool, str]] | None = None

    def member(self, client: int) -> Member:
        samples = self.clients.train_samples(client)
        return Member(client, self.name, self.peer_address, samples, weight=float(samples))


@asynccontextmanager
async def node(m: Manager, task: Task, ids: Sequence[int] | None = None, name: str = "n0") -> AsyncIterator[Node]:
    """A node attached to a manager; dialled by its peers at an address of its own."""
    n = Node(name, Clients(task, ids))

    def register(server: grpc.aio.Server) -> None:
        ModelServicer(n.store).add_to(server)

    async with serving(register) as served, Channels() as channels:
        n.peer_address = served.address
        worker = Worker(n.clients, n.store, Fetcher(n.store, channels, n.clients.tensors, "127.0.0.1"), n.slot)
        life = Attachment(await channels.to(m.served.address, TOP_SERVER), Attached("run", name, "m0"), worker)
        n.ended = asyncio.create_task(life.serve())
        try:
            assert await m.members.wait_for({name}, 10) == set()
            yield n
        finally:
            n.ended.cancel()
            await asyncio.gather(n.ended, return_exceptions=True)
            n.slot.close()


def training(n: Node, produces: str = "end", settings: TrainingSettings = SETTINGS) -> Train:
    n.store.put("start", n.clients.initial_weights(0))
    return Train(Start("start", (Source(SourceKind.LOCAL, n.name),)), produces, settings)
