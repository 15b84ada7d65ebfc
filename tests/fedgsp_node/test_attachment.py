"""A node and a manager over real streams, both in this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np
import pytest

from fedgsp import Task, wire
from fedgsp.channels import Channels, start_server
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import (
    Attached,
    AttachTo,
    Cancel,
    Describe,
    Described,
    Done,
    Failed,
    Failure,
    FailureCode,
    Fetched,
    GroupEvent,
    GroupResult,
    Initialise,
    Leave,
    Member,
    NodeMessage,
    NodeReport,
    Order,
    OrderKey,
    Progress,
    RelayMode,
    RunGroupRequest,
    Source,
    SourceKind,
    Start,
    TopServerMessage,
    Train,
    Trained,
    TrainingSettings,
    Welcome,
    Work,
)
from fedgsp.model_service import ModelServicer
from fedgsp.model_store import ModelStore
from fedgsp.settings.run import NodeSettings
from fedgsp.tickets import Door
from fedgsp.v1 import group_pb2_grpc, membership_pb2_grpc, order_pb2_grpc
from fedgsp_node import attachment, managers, server
from fedgsp_node.attachment import Attachment
from fedgsp_node.clients import Clients
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager.members import Members
from group_manager.server import GroupServicer, OrderServicer
from group_manager.sessions import Session
from tests.support.blobs_task import Blobs
from tests.support.callers import ISSUER, OPEN
from tests.support.scripted import let_others_run
from tests.support.serving import nobody, serving
from tests.support.toy_task import Toy

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
            if positions:
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
            order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run"), server)
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


# --- orders and reports


async def test_orders_are_carried_out_and_reported() -> None:
    async with manager() as m, node(m, Blobs()) as n:
        described = m.send(Describe(), client=2)
        trained = m.send(training(n), client=1, position=1)
        assert await m.result(described) == Described(n.clients.class_counts(2))
        result = await m.result(trained)
        assert isinstance(result, Trained)
        assert result.ref == (await n.store.get("end")).ref("end")


async def test_a_start_that_came_from_another_node_is_told_of_before_the_training_ends() -> None:
    began = threading.Event()
    there = asyncio.Event()
    async with manager() as m, node(m, Blobs(), name="n1") as holder, node(m, Blobs(on_loss=began.set)) as n:
        holder.store.put("start", holder.clients.initial_weights(0))
        start = Start("start", (Source(SourceKind.NODE, "n1", holder.peer_address),))
        pending = m.send(Train(start, "end", ENDLESS))
        pending.start_came = there.set
        await asyncio.wait_for(there.wait(), 10)
        assert pending.start == holder.store.held("start").digest
        assert await asyncio.to_thread(began.wait, 10)
        m.call_off(pending)
        at_home = m.send(training(n), position=1)
        await m.result(pending)
        await m.result(at_home)
        assert at_home.start == b""


async def test_an_order_that_fails_is_reported_with_its_reason() -> None:
    async with manager() as m, node(m, Blobs(), ids=[0]):
        assert await m.result(m.send(Describe(), client=3)) == Failure(
            FailureCode.UNKNOWN_CLIENT, "client 3 is not hosted here"
        )


async def test_a_bug_in_the_node_is_reported_and_the_node_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with manager() as m, node(m, Blobs()) as n:
        monkeypatch.setattr(n.clients, "initial_weights", None)
        outcome = await m.result(m.send(Initialise("fresh", 1)))
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.UNSPECIFIED
        assert outcome.detail.startswith("TypeError")
        assert isinstance(await m.result(m.send(Describe(), position=1)), Described)


async def test_a_training_that_is_called_off_stops_and_says_so() -> None:
    began = threading.Event()
    async with manager() as m, node(m, Blobs(on_loss=began.set)) as n:
        ticket = m.send(training(n, settings=ENDLESS))
        assert await asyncio.to_thread(began.wait, 10)
        m.call_off(ticket)
        m.call_off(ticket)  # twice does no harm
        assert await m.result(ticket) == Failure(FailureCode.CANCELLED, "called off")
        assert isinstance(await m.result(m.send(Describe(), position=1)), Described)
        assert "end" not in n.store


async def test_an_order_called_off_in_the_same_breath_is_reported_too() -> None:
    async with manager() as m, node(m, Blobs()) as n:
        tickets = [m.send(training(n, f"end {i}", ENDLESS), position=i) for i in range(5)]
        for ticket in tickets:
            m.call_off(ticket)
        outcomes = [await m.result(ticket) for ticket in tickets]
        done = [outcome for outcome in outcomes if isinstance(outcome, Trained)]  # it may have been that quick
        assert {outcome.code for outcome in outcomes if outcome not in done} <= {FailureCode.CANCELLED}
        assert len(n.store) == 1 + len(done)  # the start, and what was made in time


async def test_an_order_called_off_before_its_first_step_is_reported_too() -> None:
    async with Channels() as channels:
        life = Attachment(await channels.to("127.0.0.1:1", TOP_SERVER), Attached("run", "n0", "m0"), None)  # type: ignore[arg-type]
        key = OrderKey(1, "describe", 0, 0, 0, "run")
        life._take(Order(key, 0, Describe()))
        life._take(Order(key, 0, Cancel()))
        report = await life._reports.get()
        assert report is not None
        assert wire.decode(NodeReport, report).kind == Failed(key, Failure(FailureCode.CANCELLED, "called off"))


async def test_calling_off_what_is_not_running_changes_nothing() -> None:
    async with manager() as m, node(m, Blobs()):
        m.members.tell("n0", Order(OrderKey(9, "train", 9, 9), 0, Cancel()))
        m.members.tell("n0", Order(None, 0, Describe()))
        assert isinstance(await m.result(m.send(Describe())), Described)


async def test_an_order_that_comes_twice_is_carried_out_once() -> None:
    batches: list[int] = []
    async with manager() as m, node(m, Blobs(on_loss=lambda: batches.append(1))) as n:
        work = training(n)
        m.send(work)
        assert isinstance(await m.result(m.send(work)), Trained)
        await m.result(m.send(Describe(), position=1))
        assert len(batches) == 2  # of 7 and of 3 samples


async def test_while_batches_pass_all_orders_are_said_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "PROGRESS_INTERVAL_S", 0.01)
    async with manager() as m, node(m, Blobs()) as n:
        ticket, behind = m.send(training(n, settings=ENDLESS)), m.send(Describe(), position=1)
        assert await m.members.moved == {0, 1}
        m.call_off(ticket)
        assert isinstance(await m.result(behind), Described)


# --- the end of an attachment


def tasks_of_attachments() -> list[asyncio.Task[Any]]:
    ours = ("_carry_out", "_report_progress", "_consume_request_iterator")
    return [task for task in asyncio.all_tasks() if any(name in repr(task) for name in ours)]


async def test_a_manager_that_ends_the_stream_is_left_for_good() -> None:
    async with manager() as m, node(m, Blobs()) as n:
        assert n.ended is not None
        await m.members.attach("n0")  # another stream of this name
        assert await n.ended == (True, "the manager closed the stream")
        await let_others_run()
        assert not tasks_of_attachments()


async def test_a_manager_that_is_lost_can_be_dialled_again() -> None:
    async with manager() as m, node(m, Blobs()) as n:
        assert n.ended is not None
        await m.served.server.stop(None)
        over, reason = await n.ended
        assert not over
        assert reason


async def test_a_manager_that_is_not_there_is_reported() -> None:
    async with nobody() as gone:
        life = Attachment(gone.channel, Attached("run", "n0", "m0"), None)  # type: ignore[arg-type]
        over, reason = await life.serve()
        assert not over
        assert reason == f"nothing listens at {gone.address}"


async def test_orders_end_with_the_attachment_and_no_task_is_left() -> None:
    began = threading.Event()
    async with manager() as m, node(m, Blobs(on_loss=began.set)) as n:
        assert n.ended is not None
        endless = m.send(training(n, settings=ENDLESS))
        waiting = m.send(Train(Start("never", (Source(SourceKind.LOCAL, "n0"),)), "nor this", SETTINGS), position=1)
        assert await asyncio.to_thread(began.wait, 10)
        await m.members.detach(m.members._sessions["n0"])
        await n.ended
        assert {(await m.result(t)).code for t in (endless, waiting)} == {FailureCode.NODE_LOST}
        await let_others_run()
        assert not tasks_of_attachments()
        assert await n.slot.run(lambda _: "free") == "free"
        assert "end" not in n.store


async def test_a_node_dials_a_manager_again_that_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole node, with a top server that says but three things."""
    monkeypatch.setattr(managers, "FIRST_RETRY_S", 0.01)
    over = asyncio.Event()

    class TopServer(membership_pb2_grpc.MembershipServiceServicer):
        async def Join(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
            hello = wire.decode(NodeMessage, await anext(aiter(requests))).kind
            assert hello is not None
            yield wire.encode(TopServerMessage(Welcome("run")))
            yield wire.encode(TopServerMessage(AttachTo("m0", m.served.address)))
            await over.wait()
            yield wire.encode(TopServerMessage(Leave(True, "done")))

    def register_top_server(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(TopServer(), server)

    def register_orders(server: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(again, "m0", "run"), server)

    async with manager() as m, serving(register_top_server) as top:
        settings = NodeSettings(
            insecure=True, top_server=top.address, task="tests.support.batch_norm_task:Task", clients="3", name="n0"
        )
        living = asyncio.create_task(server.run(settings))
        assert await m.members.wait_for({"n0"}, 20) == set()
        await m.served.server.stop(None)
        again = Members()
        restarted, _ = await start_server(m.served.address, [register_orders], OPEN)
        try:
            assert await again.wait_for({"n0"}, 20) == set()
            over.set()
            await living
        finally:
            await restarted.stop(None)


# --- real programs on real nodes


@asynccontextmanager
async def top_server_with(weights: Any) -> AsyncIterator[str]:
    store = ModelStore()
    store.put("start", weights)

    def register(server: grpc.aio.Server) -> None:
        ModelServicer(store).add_to(server)

    async with serving(register) as served:
        yield served.address


async def toy(program: str, order: Sequence[int], epochs: int, relay: RelayMode) -> float:
    """The toy problem's w after a program on two nodes, fetched from the manager."""
    settings = TrainingSettings("sgd", epochs, 10, 0.1, seed=0)
    async with contextlib.AsyncExitStack() as stack:
        m = await stack.enter_async_context(manager())
        nodes = [await stack.enter_async_context(node(m, Toy(), [client], f"n{client}")) for client in (0, 1)]
        start = nodes[0].clients.initial_weights(0)
        address = await stack.enter_async_context(top_server_with(start))
        members = tuple(nodes[client].member(client) for client in order)
        request = RunGroupRequest(
            *("run", 1, 0, program, members, start.ref("start"), address),
            *(relay, False, settings, 30.0, start.buffer.nbytes),
        )
        stub = group_pb2_grpc.GroupServiceStub(m.served.channel)
        events = [wire.decode(GroupEvent, proto).kind async for proto in stub.RunGroup(wire.encode(request))]
        result = events[-1]
        assert isinstance(result, GroupResult), result
        assert result.ref is not None
        assert (result.bytes_direct > 0) == (program == "relay" and relay is not RelayMode.MANAGER)
        weights = await m.store.get(result.ref.id)
        assert np.array_equal(weights.ref("").digest, result.ref.digest)
        return float(weights.arrays["w"][0])


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.DIRECT, RelayMode.MANAGER])
@pytest.mark.parametrize(("order", "expected"), [((0, 1), 1.21), ((1, 0), 1.17)])
async def test_the_toy_relay_gives_the_published_values(
    order: tuple[int, int], expected: float, relay: RelayMode
) -> None:
    assert await toy("relay", order, 1, relay) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.MANAGER])
async def test_the_toy_mean_gives_the_published_value(relay: RelayMode) -> None:
    assert await toy("parallel", (0, 1), 2, relay) == pytest.approx(1.38, abs=1e-12)
