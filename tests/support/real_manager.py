"""A manager over real streams, the top server's models, and nodes: real ones, and one that says what it is told to."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import (
    Attached,
    Described,
    Discriminated,
    Discrimination,
    DiscriminatorSettings,
    Done,
    Evaluated,
    Failed,
    Failure,
    FailureCode,
    Member,
    ModelRef,
    NodeReport,
    OrderKey,
    OrderProgress,
    Progress,
    Recalled,
    RelayMode,
    RunGroupRequest,
    Source,
    SourceKind,
    Trained,
    TrainingSettings,
)
from fedgsp.security.tickets import Door
from fedgsp.tensors.memory import room
from fedgsp.tensors.spill import Room
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc, order_pb2, order_pb2_grpc
from fedgsp_node.clients import Clients
from fedgsp_node.connections.attachment import Attachment
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager.members import Members
from group_manager.server import GroupServicer, OrderServicer
from tests.support.blobs_task import Blobs
from tests.support.callers import ISSUER
from tests.support.fuzzing import path
from tests.support.serving import serving
from top_server.doors import models_of

ATTACH = path("OrderService", "Attach")
SETTINGS = TrainingSettings("sgd", 1, 7, 0.05, seed=3)
CLIENTS = Clients(Blobs(), None)
START = CLIENTS.initial_weights(0)
REF = START.ref("start")

KEY = OrderKey(1, "train", 0, 0, 0, "run")
HELLO = NodeReport(Attached("run", "n9", "m0"))
MADE = Trained(ModelRef("made"), 5, 0.5, 0.1, update=ModelRef("made.update"))
REPORTS: list[order_pb2.NodeReport] = [
    wire.encode(report)
    for report in (
        HELLO,
        NodeReport(Done(KEY, MADE)),
        NodeReport(Done(KEY, Evaluated(1, 2, 0.5, judged=2, metrics={"f1": 0.5}))),
        NodeReport(Done(KEY, Described((1, 2)))),
        NodeReport(Done(KEY, Discriminated(ModelRef("made"), (1,), 2))),
        NodeReport(Done(KEY, Recalled(("made",)))),
        NodeReport(Failed(KEY, Failure(FailureCode.STALLED, "so it is"))),
        NodeReport(Progress((OrderProgress(KEY, 7),))),
    )
]


@dataclass
class Manager:
    """A manager, and the top server's models."""

    members: Members
    store: ModelStore
    groups: GroupServicer
    channel: grpc.aio.Channel
    address: str
    top_address: str


@asynccontextmanager
async def manager(make_room: Room = room) -> AsyncIterator[Manager]:
    """`make_room` makes memory for what nodes upload."""
    members, store, top = Members(), ModelStore(), ModelStore()
    top.put("start", START)
    async with Channels() as channels, serving(models_of(top).add_to) as served_top:
        groups = GroupServicer(
            members, store, channels, Source(SourceKind.MANAGER, "m0", "not yet known"), ISSUER, Door()
        )
        models = ModelServicer(
            store,
            groups.wanted,
            groups.expected,
            lambda: groups.max_model_bytes,
            make_room,
            landing=groups.landing,
            no_room=groups.no_room,
            tensors_of=groups.tensors_of,
        )

        def register(server: grpc.aio.Server) -> None:
            order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run", "", ISSUER), server)
            group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)
            models.add_to(server)

        async with serving(register) as served:
            groups._me = Source(SourceKind.MANAGER, "m0", served.address)
            yield Manager(members, store, groups, served.channel, served.address, served_top.address)


@asynccontextmanager
async def node(m: Manager, name: str, task: Blobs | None = None) -> AsyncIterator[ModelStore]:
    """A real node, attached."""
    store, slot = ModelStore(), Slot()
    async with serving(ModelServicer(store).add_to), Channels() as channels:
        clients = Clients(task or Blobs(), None)
        worker = Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot)
        channel = await channels.to(m.address, TOP_SERVER)
        life = asyncio.create_task(Attachment(channel, Attached("run", name, "m0"), worker).serve())
        try:
            assert await m.members.wait_for({name}, 10) == set()
            yield store
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            slot.close()


def request(program: str, **changes: Any) -> RunGroupRequest:
    members = tuple(
        Member(client, f"n{client % 2}", "", CLIENTS.train_samples(client), None, 1.0) for client in range(3)
    )
    plan = Discrimination(DiscriminatorSettings(4, 1, 4, 0.01, 1), 2, 1, 1)
    good = RunGroupRequest(
        *("run", 1, 0, program, members, REF, "TOP", RelayMode.AUTO, True, SETTINGS, 0.5, 1 << 22), discrimination=plan
    )
    return dataclasses.replace(good, **changes)


@asynccontextmanager
async def parrot(m: Manager, name: str, says: Sequence[order_pb2.NodeReport | None]) -> AsyncIterator[None]:
    """A node that answers order after order with the next of these, over and over; it leaves at a None."""
    call = m.channel.stream_stream(ATTACH)()
    await call.write(wire.encode(NodeReport(Attached("run", name, "m0"))).SerializeToString())
    saying = asyncio.create_task(_repeat(call, says))
    try:
        assert await m.members.wait_for({name}, 10) == set()
        yield
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        call.cancel()


async def _repeat(call: Any, says: Sequence[order_pb2.NodeReport | None]) -> None:
    number = 0
    while (message := await call.read()) is not grpc.aio.EOF:
        order = order_pb2.Order.FromString(message)
        if not says or order.HasField("cancel"):
            continue
        said = says[number % len(says)]
        number += 1
        if said is None:
            call.cancel()
            return
        await call.write(_about(order, said).SerializeToString())


def _about(order: order_pb2.Order, said: order_pb2.NodeReport) -> order_pb2.NodeReport:
    """The same of this order; what is said of model "made" is of the one that it asks for."""
    report = order_pb2.NodeReport()
    report.CopyFrom(said)
    kind = report.WhichOneof("kind")
    if kind in ("done", "failed"):
        getattr(report, kind).key.CopyFrom(order.key)
    result = report.done.WhichOneof("result")
    if result in ("trained", "discriminated") and getattr(report.done, result).ref.id == "made":
        produces = getattr(getattr(order, order.WhichOneof("work") or "describe"), "produces", "")
        getattr(report.done, result).ref.id = produces
        if report.done.trained.update.id == "made.update":
            report.done.trained.update.id = f"{produces}.update"
    return report
