"""A node and a manager over real streams, both in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections.channels import Channels, start_server
from fedgsp.identity import TOP_SERVER
from fedgsp.identity import node as node_of
from fedgsp.messages import (
    Attached,
    AttachTo,
    Cancel,
    Describe,
    Described,
    Failed,
    Failure,
    FailureCode,
    Initialise,
    Leave,
    NodeMessage,
    NodeReport,
    Order,
    OrderKey,
    SendUp,
    Source,
    SourceKind,
    Start,
    TopServerMessage,
    Train,
    Trained,
    Welcome,
)
from fedgsp.settings.run import NodeSettings
from fedgsp.tensors.weights import WeightsError
from fedgsp.v1 import membership_pb2_grpc, order_pb2_grpc
from fedgsp_node import server
from fedgsp_node.connections import attachment, managers
from fedgsp_node.connections.attachment import Attachment
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.attached import ENDLESS, SETTINGS, manager, node, training
from tests.support.blobs_task import Blobs
from tests.support.callers import ISSUER, OPEN
from tests.support.clock import Clock
from tests.support.scripted import let_others_run
from tests.support.serving import nobody, serving

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


@pytest.mark.parametrize("stalls", [1, 2, 3])
async def test_an_upload_that_stalls_is_tried_again_a_few_times(stalls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def stalled(_: object, model_id: str, *__: object) -> None:
        tried.append(model_id)
        if len(tried) <= stalls:
            raise WeightsError(FailureCode.STALLED, "nothing was confirmed for 30 s")

    monkeypatch.setattr(attachment, "upload", stalled)
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    async with manager() as m, node(m, Blobs()) as n:
        n.store.put("end", n.clients.initial_weights(0))
        outcome = await m.result(m.send(SendUp("end")))
        assert (outcome is None) == (stalls < attachment.UPLOADS)
        assert tried == ["end"] * min(stalls + 1, attachment.UPLOADS)


@pytest.mark.parametrize(("seconds", "times"), [(2, 5), (0, 25)])
async def test_an_upload_that_every_connection_cuts_off_is_given_up_with_the_reason(
    seconds: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that ends all connections after some minutes, also those for orders."""
    tried: list[str] = []

    async def cut_off(serving: attachment.Attachment, model_id: str, *_: object) -> None:
        tried.append(model_id)
        serving._connections += 1  # the next try has another connection for orders
        clock.advance(seconds)
        raise WeightsError(FailureCode.UNREACHABLE, "UNAVAILABLE: Socket closed")

    monkeypatch.setattr(attachment.Attachment, "_try_upload", cut_off)
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(attachment, "LONG_TRY_S", 2.0)
    async with manager() as m, node(m, Blobs()) as n:
        n.store.put("end", n.clients.initial_weights(0))
        clock = Clock()
        outcome = await m.result(m.send(SendUp("end")))
    assert tried == ["end"] * times
    assert isinstance(outcome, Failure)
    assert outcome.code is FailureCode.UNREACHABLE
    assert f"was cut off {times} times on its way, after {seconds} s at most: perhaps a proxy" in outcome.detail
    assert outcome.detail.endswith("(UNAVAILABLE: Socket closed)")


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
            yield wire.encode(TopServerMessage(Welcome("run", key=ISSUER.key_of(node_of("n0")))))
            yield wire.encode(TopServerMessage(AttachTo("m0", m.served.address)))
            await over.wait()
            yield wire.encode(TopServerMessage(Leave(True, "done")))

    def register_top_server(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(TopServer(), server)

    def register_orders(server: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(again, "m0", "run", "", ISSUER), server)

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
