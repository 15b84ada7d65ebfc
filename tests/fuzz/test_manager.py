"""Nodes and top servers that say anything to a group manager.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from support.blobs_task import Blobs
from support.fuzzing import (
    ENDINGS,
    MOMENT_S,
    SOON_S,
    check_refusal,
    fuzzed,
    heard,
    near,
    path,
    said,
    say,
    soon,
    unharmed,
    until,
)
from support.serving import serving

from fedgsp import wire
from fedgsp.channels import Channels
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
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    ModelRef,
    NodeReport,
    Order,
    OrderKey,
    OrderProgress,
    Part,
    Progress,
    RelayMode,
    Release,
    Results,
    Reveal,
    RunGroupRequest,
    Source,
    SourceKind,
    Train,
    Trained,
    TrainingSettings,
)
from fedgsp.model_service import ModelServicer, fetch
from fedgsp.model_store import ModelStore
from fedgsp.v1 import group_pb2, group_pb2_grpc, order_pb2, order_pb2_grpc
from fedgsp.weights import WeightsError
from fedgsp_node.attachment import Attachment
from fedgsp_node.clients import Clients
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager import servicers
from group_manager.group import Group
from group_manager.members import Members
from group_manager.programs import PROGRAMS
from group_manager.servicers import GroupServicer, OrderServicer
from top_server.server import _not_here

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

ATTACH, RUN_GROUP, FORGET = (
    path("OrderService", "Attach"),
    path("GroupService", "RunGroup"),
    path("GroupService", "Forget"),
)
SETTINGS = TrainingSettings("sgd", 1, 7, 0.05, seed=3)
CLIENTS = Clients(Blobs(), None)
START = CLIENTS.initial_weights(0)
REF = START.ref("start")


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
async def manager() -> AsyncIterator[Manager]:
    members, store, top = Members(), ModelStore(), ModelStore()
    top.put("start", START)
    async with Channels() as channels, serving(ModelServicer(top, _not_here).add_to) as served_top:
        groups = GroupServicer(members, store, channels, Source(SourceKind.MANAGER, "m0", "not yet known"))
        models = ModelServicer(store, groups.wanted, groups.expected, lambda: groups.max_model_bytes)

        def register(server: grpc.aio.Server) -> None:
            order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0"), server)
            group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)
            models.add_to(server)

        async with serving(register) as served:
            groups._me = Source(SourceKind.MANAGER, "m0", served.address)
            yield Manager(members, store, groups, served.channel, served.address, served_top.address)


@asynccontextmanager
async def node(m: Manager, name: str) -> AsyncIterator[ModelStore]:
    """A real node, attached."""
    store, slot = ModelStore(), Slot()
    async with serving(ModelServicer(store).add_to), Channels() as channels:
        clients = Clients(Blobs(), None)
        worker = Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot)
        life = asyncio.create_task(Attachment(channels.to(m.address), Attached("run", name, "m0"), worker).serve())
        try:
            assert await m.members.wait_for({name}, 10) == set()
            yield store
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            slot.close()


def request(program: str, **changes: Any) -> RunGroupRequest:
    members = tuple(Member(client, f"n{client % 2}", "", 1, None, 1.0) for client in range(3))
    plan = Discrimination(DiscriminatorSettings(4, 1, 4, 0.01, 1), 2, 1, 1)
    good = RunGroupRequest(
        *("run", 1, 0, program, members, REF, "TOP", RelayMode.AUTO, True, SETTINGS, 0.5, 1 << 22), discrimination=plan
    )
    return dataclasses.replace(good, **changes)


# --- nodes

KEY = OrderKey(1, "train", 0, 0, 0, "run")
HELLO = NodeReport(Attached("run", "n9", "m0"))
MADE = Trained(ModelRef("made"), 5, 0.5, 0.1, update=ModelRef("made.update"))
REPORTS: list[order_pb2.NodeReport] = [
    wire.encode(report)
    for report in (
        HELLO,
        NodeReport(Done(KEY, MADE)),
        NodeReport(Done(KEY, Evaluated(1, 2, 0.5, metrics={"f1": 0.5}))),
        NodeReport(Done(KEY, Described((1, 2)))),
        NodeReport(Done(KEY, Discriminated(ModelRef("made"), (1,), 2))),
        NodeReport(Failed(KEY, Failure(FailureCode.STALLED, "so it is"))),
        NodeReport(Progress((OrderProgress(KEY, 7),))),
    )
]
NODE_SAYS = said(order_pb2.NodeReport, REPORTS, ("n9", "n0", "run", "train", "made", "start"))


@fuzzed(50)
@given(
    streams=st.lists(st.tuples(st.booleans(), st.lists(NODE_SAYS, max_size=4), ENDINGS), min_size=1, max_size=2),
)
async def test_whatever_nodes_report_the_manager_lives_on(streams: list[tuple[bool, list[bytes], str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with unharmed(), manager() as m:
            for introduced, messages, ending in streams:
                patch.setattr(servicers, "HELLO_TIMEOUT_S", 5.0 if introduced else 0.02)
                first = [REPORTS[0].SerializeToString()] if introduced else []
                call = m.channel.stream_stream(ATTACH)()
                await say(call, first, "silence")
                if introduced:
                    assert await m.members.wait_for({"n9"}, 5) == set()
                    ticket = m.members.submit("n9", Order(KEY, 0, Train(None, "made", SETTINGS)))
                await say(call, messages, ending)
                await heard(call, 0.01 if ending == "cancel" else MOMENT_S / 2)
                await until(lambda: not m.members._sessions)
                if introduced:
                    outcome = await soon(m.members.outcome(ticket, 1.0))
                    assert outcome is not None or any(b"made" not in message for message in messages)
                    if isinstance(outcome, Trained):
                        assert outcome.ref is None or outcome.ref.id == "made"
                        assert outcome.samples <= 2**48
            patch.setattr(servicers, "HELLO_TIMEOUT_S", 5.0)
            async with node(m, "n0"):
                pass
            assert not m.store


async def reported(work: Any, result: Any) -> Any:
    members = Members()
    session = await members.attach("n9")
    ticket = members.submit("n9", Order(KEY, 0, work))
    members.report(session, Done(KEY, result))
    return await members.outcome(ticket, 1.0)


TRAIN = Train(None, "made", SETTINGS)


@pytest.mark.parametrize(
    ("work", "result", "why"),
    [
        (TRAIN, dataclasses.replace(MADE, ref=ModelRef("start")), "made model 'start'"),
        (TRAIN, MADE, "revealed 'made.update'"),
        (
            dataclasses.replace(TRAIN, reveal=Reveal("exact")),
            dataclasses.replace(MADE, update=REF),
            "revealed 'start'",
        ),
        (TRAIN, Trained(ModelRef("made"), 2**64 - 1), "18446744073709551615 samples"),
        (TRAIN, Trained(ModelRef("made"), bytes=2**64 - 1), "moved 18446744073709551615 bytes"),
        (None, Evaluated(3, 2, 0.0), "3 right answers on 2"),
        (None, Evaluated(1, 2, 0.0, squared_distance=float("nan")), "distance of nan"),
        (None, Described((1, 2**64 - 1)), "samples of class 1"),
    ],
)
async def test_an_answer_that_cannot_be_is_a_failure(work: Any, result: Any, why: str) -> None:
    outcome = await reported(work, result)
    assert isinstance(outcome, Failure)
    assert outcome.code is FailureCode.BAD_ORDER
    assert why in outcome.detail


async def test_progress_that_repeats_itself_is_no_sign_of_life() -> None:
    members = Members()
    session = await members.attach("n9")
    ticket = members.submit("n9", Order(KEY, 0, TRAIN))
    members.report(session, Progress((OrderProgress(KEY, 7),)))
    ticket.touched = 0.0
    members.report(session, Progress((OrderProgress(KEY, 7),)))
    assert ticket.touched == 0.0
    members.report(session, Progress((OrderProgress(KEY, 8),)))
    assert ticket.touched > 0.0


# --- the top server

PARTS = (Part(REF, "", 1.0), Part(ModelRef("other"), "n0", 2.0, 0))
REQUESTS: list[group_pb2.RunGroupRequest] = [
    *(wire.encode(request(program)) for program in PROGRAMS),
    wire.encode(request("parallel", aggregation="fednova", reveal=Reveal("exact"))),
    wire.encode(request("alone", results=Results.COLLECTED, reveal=Reveal("sketch:8"))),
    wire.encode(request("alone", results=Results.RETAINED, parts=PARTS, start=ModelRef("mean"))),
    wire.encode(request("compare", members=(Member(0, "n0", "", 1, Part(ModelRef("other"), "n0", 1.0, 0)),))),
]
WORDS = (*PROGRAMS, "n0", "n1", "start", "other", "run", "sgd", "pfedme", "fednova", "exact", "layer:0", "sketch:4")


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bool]:
    if draw(st.integers(0, 4)) == 0:
        return draw(said(group_pb2.RunGroupRequest, REQUESTS, WORDS)), True
    return draw(near(draw(st.sampled_from(REQUESTS)), WORDS)).SerializeToString(), draw(st.integers(0, 4)) > 0


@fuzzed(60)
@given(asked=requests())
async def test_whatever_group_is_asked_for_it_ends_or_is_called_off_and_leaves_nothing(
    asked: tuple[bytes, bool],
) -> None:
    message, stays = asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servicers, "ATTACH_TIMEOUT_S", 0.02)
        async with unharmed(), AsyncExitStack() as stack:
            m = await stack.enter_async_context(manager())
            stores = [await stack.enter_async_context(node(m, name)) for name in ("n0", "n1")]
            message = _addressed(message, m.top_address)

            async def take(answer: bytes) -> None:
                await _forget(m, _told_of(_event(answer)))

            call = m.channel.unary_stream(RUN_GROUP)(message)
            answers, status = await heard(call, SOON_S if stays else 0.03, take)
            events = [_event(answer) for answer in answers]
            assert status is not None or not stays, events
            if status is grpc.StatusCode.OK:
                last = events[-1]
                assert isinstance(last, GroupResult | Failure)
                assert (
                    not isinstance(last, Failure)
                    or last.code is not FailureCode.UNSPECIFIED
                    or "no mem" in last.detail
                )
            await until(lambda: not m.groups._groups)
            # All that stays here is what the top server has to fetch.
            await _forget(m, m.store._held)
            assert len(m.store) == 0
            good = wire.encode(request("describe", start_address=m.top_address))
            answers, status = await heard(m.channel.unary_stream(RUN_GROUP)(good.SerializeToString()), 5.0)
            assert (len(answers), status) == (4, grpc.StatusCode.OK)
            assert all(not store._waiting for store in stores)


def _addressed(message: bytes, address: str) -> bytes:
    try:
        asked = group_pb2.RunGroupRequest.FromString(message)
    except DecodeError:
        return message
    if asked.start_address == "TOP":
        asked.start_address = address
    # Longer work may be asked for, and is then done.
    asked.stall_timeout_s = min(asked.stall_timeout_s, 0.5)
    if asked.HasField("training"):
        asked.training.local_epochs = min(asked.training.local_epochs, 3)
    return asked.SerializeToString()


def _event(answer: bytes) -> Any:
    return wire.decode(GroupEvent, group_pb2.GroupEvent.FromString(answer)).kind


def _told_of(event: Any) -> list[str]:
    """The models that a top server takes when it hears this."""
    result = event.result if isinstance(event, MemberDone) else None
    refs = (result.ref, result.update) if isinstance(result, Trained) else ()
    return [ref.id for ref in refs if ref is not None]


async def _forget(m: Manager, ids: Any) -> None:
    release = wire.encode(Release(tuple(ids))).SerializeToString()
    await soon(m.channel.unary_unary(FORGET)(release))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"stall_timeout_s": float("nan")}, "cannot stall for nan s"),
        ({"stall_timeout_s": float("inf")}, "cannot stall for inf s"),
        ({"stall_timeout_s": -1.0}, "cannot stall for -1.0 s"),
        ({"start": None}, "needs a start"),
        ({"training": None}, "needs training settings"),
        ({"parts": (Part(None, "", 1.0),)}, "a part has no name"),
        ({"parts": (Part(REF, "", 1.0),)}, "a part of itself"),
        ({"parts": PARTS, "start": None}, "the mean of the parts has no name"),
        ({"members": (Member(2**63, "n0"),)}, "no client has the id"),
        ({"members": (Member(1, "n0"), Member(1, "n1"))}, "a member twice"),
        ({"program": "collect"}, "no model to collect"),
        ({"program": "discriminate", "members": tuple(Member(c, "n0") for c in range(5000))}, "too many"),
    ],
)
async def test_a_group_that_cannot_be_run_is_refused_before_it_begins(changes: dict[str, Any], why: str) -> None:
    async with unharmed(), manager() as m:
        call = group_pb2_grpc.GroupServiceStub(m.channel).RunGroup(
            wire.encode(request(**{"program": "relay", **changes}))
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert why in str(refused.value.details())


async def test_a_model_that_nobody_knows_of_is_not_waited_for() -> None:
    async with unharmed(), manager() as m:
        with pytest.raises(WeightsError) as refused:
            await soon(fetch(m.channel, "run/1/0/0.0", None, 100))
    assert refused.value.failure.code is FailureCode.NO_SUCH_MODEL


async def test_what_no_node_is_known_to_have_cannot_be_collected() -> None:
    m = Members()
    async with Channels() as channels:
        group = Group(request("relay"), m, ModelStore(), channels, Source(SourceKind.MANAGER, "m0"), lambda _: None, deque())
        found = await soon(group.collect("unheard of"))
    assert isinstance(found, Failure)
    assert found.code is FailureCode.NO_SUCH_MODEL


@fuzzed(20)
@given(message=said(order_pb2.Release, [wire.encode(Release(("start", "m"), True))], ("start",)))
async def test_whatever_is_to_be_forgotten_is_no_trouble(message: bytes) -> None:
    async with unharmed(), manager() as m:
        try:
            await soon(m.channel.unary_unary(FORGET)(message))
        except grpc.aio.AioRpcError as error:
            check_refusal(error)
