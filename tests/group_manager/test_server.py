"""The manager on the wire: real streams, real calls, scripted nodes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import (
    Attached,
    Describe,
    Described,
    Done,
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    GroupResult,
    MemberDone,
    MemberSkipped,
    ModelRef,
    NodeReport,
    Order,
    OrderKey,
    Part,
    Release,
    Rerouted,
    RunGroupRequest,
)
from fedgsp.programs import PROGRAMS, Program
from fedgsp.security.access import shown
from fedgsp.security.tickets import Door
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.v1 import group_pb2_grpc, order_pb2, order_pb2_grpc
from group_manager import server as manager_server
from group_manager.group import Group
from group_manager.members import Members
from group_manager.server import GroupServicer, OrderServicer
from tests.support.callers import ISSUER
from tests.support.faults import Faults
from tests.support.scene import MANAGER, START, Scene, hosted, relayed, scene
from tests.support.scripted import TENSORS, ScriptedNode, let_others_run, model, value_of
from tests.support.serving import serving

TWO_NODES = hosted(n1=[0, 2], n2=[1])
KEY = OrderKey(1, "describe", 0, 0)
ORDER = Order(KEY, 3, Release(("m",)))


# --- nodes attach


class Stream:
    """A node's end of its order stream."""

    def __init__(self, channel: grpc.aio.Channel, process: str = "") -> None:
        self._reports: asyncio.Queue[NodeReport | None] = asyncio.Queue()
        self.call = order_pb2_grpc.OrderServiceStub(channel).Attach(self._outgoing(), metadata=shown(b"", process))

    def say(self, report: NodeReport | None) -> None:
        self._reports.put_nowait(report)

    async def order(self) -> Order | None:
        proto = await self.call.read()
        return wire.decode(Order, proto) if proto else None

    async def _outgoing(self) -> AsyncIterator[order_pb2.NodeReport]:
        while (report := await self._reports.get()) is not None:
            yield wire.encode(report)


@asynccontextmanager
async def order_service() -> AsyncIterator[tuple[Members, grpc.aio.Channel]]:
    members = Members()

    def register(server: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run"), server)

    async with serving(register) as served:
        yield members, served.channel


async def test_an_attached_node_takes_orders_and_reports() -> None:
    async with order_service() as (members, channel):
        stream = Stream(channel)
        stream.say(NodeReport(Attached("run", "n1", "m0")))
        assert await members.wait_for({"n1"}, 10) == set()
        asked = Order(KEY, 3, Describe())
        pending = members.submit("n1", asked)
        assert await stream.order() == asked
        stream.say(NodeReport(None))  # of a kind that this version does not know
        stream.say(NodeReport(Done(KEY, Described((1, 2)))))
        assert await members.outcome(pending, 10) == Described((1, 2))
        stream.say(None)
        assert await stream.order() is None


@pytest.mark.parametrize(
    "first", [NodeReport(Done(KEY, None)), NodeReport(Attached("run", "")), NodeReport(None), None]
)
async def test_who_does_not_say_who_attaches_is_refused(first: NodeReport | None) -> None:
    async with order_service() as (_, channel):
        stream = Stream(channel)
        stream.say(first)
        stream.say(None)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.order()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "which node attaches" in str(refused.value.details())


@pytest.mark.parametrize(("run", "manager"), [("run", "m7"), ("another", "m0")])
async def test_a_node_that_means_another_manager_is_refused(run: str, manager: str) -> None:
    async with order_service() as (members, channel):
        stream = Stream(channel)
        stream.say(NodeReport(Attached(run, "n1", manager)))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.order()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert not members.attached("n1")


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_the_orders_of_a_node_that_leaves_are_lost(hangs_up: bool) -> None:
    async with order_service() as (members, channel):
        stream = Stream(channel)
        stream.say(NodeReport(Attached("run", "n1", "m0")))
        await members.wait_for({"n1"}, 10)
        pending = members.submit("n1", ORDER)
        await stream.order()
        if hangs_up:
            stream.call.cancel()
        stream.say(None)
        outcome = await members.outcome(pending, 10)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NODE_LOST
        assert not members.attached("n1")


async def test_a_node_that_attaches_again_ends_its_older_stream() -> None:
    async with order_service() as (members, channel):
        old, new = Stream(channel, "p"), Stream(channel, "p")
        old.say(NodeReport(Attached("run", "n1", "m0")))
        await members.wait_for({"n1"}, 10)
        pending = members.submit("n1", ORDER)
        await old.order()
        new.say(NodeReport(Attached("run", "n1", "m0")))
        assert await old.order() is None
        assert await new.order() == ORDER
        new.say(NodeReport(Done(KEY, None)))
        assert await members.outcome(pending, 10) is None
        for stream in (old, new):
            stream.say(None)


# --- groups run


@dataclass
class Manager:
    """A manager's services around a scene's members and store."""

    play: Scene
    servicer: GroupServicer
    channel: grpc.aio.Channel

    def run_group(self, request: RunGroupRequest) -> grpc.aio.UnaryStreamCall:
        return group_pb2_grpc.GroupServiceStub(self.channel).RunGroup(wire.encode(request))

    async def events(self, request: RunGroupRequest) -> list[GroupEvent]:
        found = [wire.decode(GroupEvent, proto) async for proto in self.run_group(request)]
        for node in self.play.nodes.values():
            await node.settle()
        return found


@asynccontextmanager
async def manager(faults: Faults | None = None) -> AsyncIterator[Manager]:
    async with scene(faults) as play:
        groups = GroupServicer(play.members, play.store, play.channels, MANAGER, ISSUER, Door())
        models = ModelServicer(play.store, groups.wanted, groups.expected, lambda: groups.max_model_bytes)

        def register(server: grpc.aio.Server) -> None:
            group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)
            models.add_to(server)

        async with serving(register) as served:
            yield Manager(play, groups, served.channel)


async def test_a_group_runs_and_its_result_is_kept_until_it_is_forgotten() -> None:
    async with manager() as m:
        await m.play.attach(TWO_NODES)
        *events, last = await m.events(m.play.request(TWO_NODES, "relay"))
        assert [event.kind.client for event in events if isinstance(event.kind, MemberDone)] == [0, 1, 2]
        assert isinstance(last.kind, GroupResult)
        assert last.kind.ref is not None
        weights = await fetch(m.channel, last.kind.ref.id, TENSORS, 8)
        assert value_of(weights) == relayed([0, 1, 2])
        m.play.assert_released(here=1)
        stub = group_pb2_grpc.GroupServiceStub(m.channel)
        await stub.Forget(wire.encode(Release((last.kind.ref.id,))))
        m.play.assert_released()


async def test_a_manager_runs_one_group_after_the_other_and_many_at_once() -> None:
    async with manager() as m:
        await m.play.attach(TWO_NODES)
        requests = [m.play.request(TWO_NODES, "parallel", group=group, round=r) for group in range(3) for r in (1, 2)]
        for found in await asyncio.gather(*(m.events(request) for request in requests)):
            assert isinstance(found[-1].kind, GroupResult)


async def test_an_unknown_program_is_refused_with_those_that_are_known() -> None:
    async with manager() as m:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await m.events(m.play.request(TWO_NODES, "gossip"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'gossip'; known: relay, parallel" in str(refused.value.details())


async def test_members_whose_nodes_do_not_attach_in_time_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_server, "ATTACH_TIMEOUT_S", 0.05)
    async with manager() as m:
        await m.play.attach([TWO_NODES[0]])
        first, *_, last = await m.events(m.play.request(TWO_NODES, "relay"))
        assert isinstance(first.kind, MemberSkipped)
        assert first.kind.client == 1
        assert first.kind.failure is not None
        assert first.kind.failure.code is FailureCode.NODE_LOST
        assert "did not attach to m0 at " in first.kind.failure.detail
        assert "not the ports of group managers (--manager-ports)" in first.kind.failure.detail
        assert isinstance(last.kind, GroupResult)
        assert last.kind.samples == 1 + 3


async def test_a_member_that_has_trained_is_not_skipped_because_its_node_is_away_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chain goes on from the model of the last hop, which another node has."""
    monkeypatch.setattr(manager_server, "ATTACH_TIMEOUT_S", 0.05)
    members = hosted(n1=[0], n2=[1, 2])
    async with manager() as m:
        await m.play.attach(members[1:])
        last = model(relayed([0, 1]))
        m.play.nodes["n2"].store.put("run/1/0/relay/1.0", last)
        hops = (
            FinishedHop(members[0], ModelRef("run/1/0/relay/0.0")),
            FinishedHop(members[1], last.ref("run/1/0/relay/1.0")),
        )
        *events, end = await m.events(m.play.request(members, "relay", attempt=1, finished=hops))
        assert not [event for event in events if isinstance(event.kind, MemberSkipped)]
        assert [event.kind.position for event in events if isinstance(event.kind, MemberDone)] == [2]
        assert isinstance(end.kind, GroupResult)
        assert end.kind.samples == sum(member.samples for member in members)


async def test_nodes_that_attach_late_are_waited_for() -> None:
    async with manager() as m:
        running = asyncio.create_task(m.events(m.play.request(TWO_NODES, "relay")))
        await let_others_run()
        await m.play.attach(TWO_NODES)
        *_, last = await running
        assert isinstance(last.kind, GroupResult)
        assert m.play.skipped == {}


async def test_nodes_that_only_hold_a_part_of_the_start_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for, waits = Members.wait_for, asyncio.Event()

    async def noting(self: Members, nodes: set[str], timeout_s: float) -> set[str]:
        waits.set()
        return await wait_for(self, nodes, timeout_s)

    monkeypatch.setattr(Members, "wait_for", noting)
    async with manager() as m:
        await m.play.attach(TWO_NODES[1:2])
        m.play.nodes["n2"].store.put("of n2", model(8.0))
        parts = (Part(model(4.0).ref("of n1"), "n1", 1.0), Part(model(8.0).ref("of n2"), "n2", 1.0))
        member = dataclasses.replace(TWO_NODES[1], start=Part(model(START).ref("start")))
        asked = m.play.request([member], "alone", start=ModelRef("mean"), parts=parts)
        running = asyncio.create_task(m.events(asked))
        await waits.wait()
        await let_others_run()
        late = m.play.nodes["n1"] = ScriptedNode("n1", m.play)
        late.store.put("of n1", model(4.0))
        await late.attach()
        *_, last = await running
        assert isinstance(last.kind, GroupResult)
        assert value_of(await m.play.store.get("mean")) == 6.0


async def test_if_no_node_attaches_the_group_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_server, "ATTACH_TIMEOUT_S", 0.05)
    async with manager() as m:
        *skipped, last = await m.events(m.play.request(TWO_NODES, "relay"))
        assert len(skipped) == 3
        assert isinstance(last.kind, Failure)
        assert "did not attach to m0 at " in last.kind.detail


async def test_a_bug_in_a_program_ends_the_group_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: Group) -> GroupResult:
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(PROGRAMS.built_in, "broken", Program(help="broken", code=broken))
    async with manager() as m:
        await m.play.attach(TWO_NODES)
        (last,) = await m.events(m.play.request(TWO_NODES, "broken"))
        assert last.kind == Failure(FailureCode.UNSPECIFIED, "ZeroDivisionError: oops")


@pytest.mark.parametrize("program", ["relay", "parallel", "evaluate"])
async def test_a_group_whose_caller_hangs_up_half_way_leaves_nothing_behind(program: str) -> None:
    async with manager(Faults().hold_for_good(1)) as m:
        await m.play.attach(TWO_NODES)
        call = m.run_group(m.play.request(TWO_NODES, program))
        await m.play.holding.wait()
        assert await call.read() is not None  # 0 is done
        call.cancel()
        held = [node for node in m.play.nodes.values() if node.name == "n2"]
        await held[0].called_off.wait()
        for node in m.play.nodes.values():
            await node.settle()
        m.play.assert_released()
        assert not m.servicer.expected("start")
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "group 0"]
        if program == "relay":
            assert m.play.trained == [0]  # 2 would have been next, after 1


async def test_an_upload_that_nobody_asked_for_is_refused() -> None:
    async with manager() as m:
        with pytest.raises(WeightsError):
            await upload(m.channel, "run/1/0/relay/0.0", model(1.0))
        assert len(m.play.store) == 0


async def test_a_model_that_is_read_from_the_manager_is_reported_before_its_reader_has_trained() -> None:
    async with manager(Faults().hold_for_good(2)) as m:
        await m.play.attach(TWO_NODES)
        call = m.run_group(m.play.request(TWO_NODES, "relay"))
        await m.play.holding.wait()
        for _ in range(2):  # one that is fetched twice is told of once
            await fetch(m.channel, "run/1/0/relay/1.0", TENSORS, 8)
        told = [wire.decode(GroupEvent, await call.read()).kind for _ in range(3)]
        assert [type(kind) for kind in told] == [MemberDone, MemberDone, Rerouted]
        assert told[-1] == Rerouted(2, "node n2 could not be reached at n2:1: by way of the manager")
        call.cancel()


async def test_a_model_is_asked_for_by_the_group_that_knows_of_it() -> None:
    async with manager(Faults().hold_for_good(2)) as m:
        await m.play.attach(TWO_NODES)
        call = m.run_group(m.play.request(TWO_NODES, "relay"))
        await m.play.holding.wait()
        assert not m.servicer.expected("run/1/0/relay/1.0")  # nobody has asked for it yet
        assert value_of(await fetch(m.channel, "run/1/0/relay/1.0", TENSORS, 8)) == relayed([0, 1])
        call.cancel()
        await m.play.nodes["n1"].called_off.wait()
