"""A process of another user takes the port of a group manager that has died: no node works for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.connections.handlers import Opening
from fedgsp.identity import TOP_SERVER, Identity
from fedgsp.identity import node as node_of
from fedgsp.messages import (
    Attached,
    Describe,
    Failed,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    Member,
    ModelRef,
    NodeReport,
    Order,
    OrderKey,
    RelayMode,
    RunGroupRequest,
    TrainingSettings,
)
from fedgsp.security.access import ANSWER
from fedgsp.security.tickets import Door
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc, order_pb2_grpc
from fedgsp_node.clients import Clients
from fedgsp_node.connections import attachment
from fedgsp_node.connections.attachment import Attachment
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.blobs_task import Blobs
from tests.support.callers import ISSUER, over
from tests.support.serving import serving
from top_server.managers import client as manager_client
from top_server.managers.client import BrokenOff, ManagerClient

NODE = node_of("n0")
REQUEST = RunGroupRequest(
    *("run", 1, 0, "relay", (Member(0, "n0", "", 20),), ModelRef("start", 40, b"digest"), "127.0.0.1:1"),
    *(RelayMode.AUTO, False, TrainingSettings("sgd", 1, 5, 0.1, 7), 60.0, 40),
)
TAKEN = "the process at its address is not the manager: another one has taken its port"
KEY = OrderKey(1, "describe", 0, 0, 0, "run")


class Impostor(order_pb2_grpc.OrderServiceServicer):
    """Takes every ticket, and orders what it likes."""

    def __init__(self, opening: Opening | None, *orders: Order) -> None:
        self._opening, self._orders = opening, orders
        self.told: list[Any] = []
        self.called = asyncio.Event()

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        reading = asyncio.create_task(self._read(requests))
        if self._opening is not None:
            yield self._opening
        for order in self._orders:
            yield wire.encode(order)
        await asyncio.gather(reading)

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for report in requests:
            self.told.append(wire.decode(NodeReport, report).kind)
            self.called.set()


@asynccontextmanager
async def attached(servicer: Any, me: Identity = NODE) -> AsyncIterator[Attachment]:
    """The connection of a node that has its key from the top server, and thinks that m0 is there."""

    def register(server: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(servicer, server)

    store, slot, clients = ModelStore(), Slot(), Clients(Blobs(), None)
    async with serving(register) as served, Channels() as channels:
        worker = Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot)
        channel = await channels.to(served.address, TOP_SERVER)
        yield Attachment(channel, Attached("run", "n0", "m0"), worker, door=Door(ISSUER.key_of(me)))
        slot.close()


@pytest.mark.parametrize(
    "opening",
    [
        None,
        Opening(),
        Opening(((ANSWER, bytes(32)),)),
        # what the manager itself answered to another question
        Opening(((ANSWER, ISSUER.answer(NODE, "m0", "another question")),)),
    ],
    ids=["orders at once", "shows nothing", "shows a guess", "shows an old answer"],
)
async def test_a_node_does_no_work_for_an_impostor(opening: Opening | None) -> None:
    impostor = Impostor(opening, Order(KEY, 0, Describe()))
    async with attached(impostor) as life:
        assert await life.serve() == (False, TAKEN)
        assert not life.reached
    assert all(isinstance(told, Attached) for told in impostor.told)


async def test_an_impostor_that_only_listens_learns_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "ANSWER_TIMEOUT_S", 0.4)
    monkeypatch.setattr(attachment, "PROGRESS_INTERVAL_S", 0.1)
    impostor = Impostor(None)
    async with attached(impostor) as life:
        serving_it = asyncio.create_task(life.serve())
        await impostor.called.wait()
        life._send(wire.encode(NodeReport(Failed(KEY, Failure(FailureCode.CANCELLED, "a result")))))
        assert await serving_it == (False, "it did not show within 0 s that it is the manager")
        assert not life.reached  # so that it is given up at some time
    assert [type(told) for told in impostor.told] == [Attached]


class FalseManager(group_pb2_grpc.GroupServiceServicer):
    """Has taken the port of a manager, and tells of a result that nobody trained, refuses the group, or is silent."""

    def __init__(self, opening: Opening | None, then: str) -> None:
        self._opening, self._then = opening, then

    async def RunGroup(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        if self._opening is not None:
            yield self._opening
        match self._then:
            case "result":
                yield wire.encode(GroupEvent(GroupResult(ModelRef("m", 40, b"digest"), 20, 40, 0)))
            case "refusal":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a wrong request")
            case "silence":
                await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("opening", "then", "why"),
    [
        (None, "result", "another process has taken its port"),
        (Opening(), "result", "another process has taken its port"),
        (Opening(((ANSWER, bytes(32)),)), "result", "another process has taken its port"),
        (
            Opening(((ANSWER, ISSUER.answer(TOP_SERVER, "m0", "another question")),)),
            "result",
            "another process has taken its port",
        ),
        (None, "refusal", "INVALID_ARGUMENT: a wrong request"),
        (None, "end", "another process has taken its port"),
        (None, "silence", "it did not show within 0 s who it is"),
    ],
    ids=["result", "shows nothing", "shows a guess", "shows an old answer", "refusal", "end", "silence"],
)
async def test_a_top_server_takes_no_result_and_no_refusal_of_an_impostor(
    opening: Opening | None, then: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if then == "silence":
        monkeypatch.setattr(manager_client, "PROOF_TIMEOUT_S", 0.1)
    heard: list[GroupEvent] = []

    def register(server: grpc.aio.Server) -> None:
        group_pb2_grpc.add_GroupServiceServicer_to_server(FalseManager(opening, then), server)  # type: ignore[abstract]

    async with serving(register) as served:
        client = ManagerClient("m0", over(served.channel), ISSUER)
        ended = await client.run_group(REQUEST, heard.append)
    assert ended == BrokenOff(Failure(FailureCode.UNREACHABLE, f"manager m0: {why}"), lost=True)
    assert not heard


@pytest.mark.parametrize(
    ("name", "me", "known"),
    [("m0", NODE, True), ("m1", NODE, False), ("m0", node_of("n1"), False)],
    ids=["itself", "another manager of the run", "by the key of another node"],
)
async def test_a_manager_shows_each_node_that_it_is_one_of_the_run(name: str, me: Identity, known: bool) -> None:
    """A stranger gains nothing by passing on what a node asks."""
    members = Members()

    class Manager(OrderServicer):
        """It takes the node for one of its own, as if a stranger had changed the name on the way."""

        async def Attach(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
            async def changed() -> AsyncIterator[Any]:
                async for report in requests:
                    if report.HasField("attached"):
                        report.attached.manager = name
                    yield report

            async for order in super().Attach(changed(), context):
                yield order

    async with attached(Manager(members, name, "run", "", ISSUER), me) as life:
        serving_it = asyncio.create_task(life.serve())
        if known:
            assert await members.wait_for({"n0"}, 20) == set()
            serving_it.cancel()
            await asyncio.gather(serving_it, return_exceptions=True)
        else:
            assert await serving_it == (False, TAKEN)
