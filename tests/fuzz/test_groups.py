"""Top servers that ask a group manager for anything, and nodes that answer anything while it is done.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.messages import (
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    ModelRef,
    Part,
    Release,
    Results,
    Reveal,
    Trained,
)
from fedgsp.programs import PROGRAMS
from fedgsp.v1 import group_pb2, group_pb2_grpc
from group_manager import server as manager_server
from tests.support.fuzzing import fuzzed, heard, near, path, said, soon, unharmed, until
from tests.support.real_manager import REF, REPORTS, START, Manager, manager, node, parrot, request

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

#: Every group ends within this time, most within a hundredth of it.
ENDS_S = 15.0
RUN_GROUP, FORGET = path("GroupService", "RunGroup"), path("GroupService", "Forget")
PARTS = (Part(REF, "", 1.0), Part(ModelRef("other"), "n0", 2.0, 0))
#: What a manager that was lost left with the nodes.
LEFT = {"n0": ("run/1/0/relay/0.0", "run/1/0/parallel/0.0"), "n1": ("run/1/0/relay/1.0",)}
HOPS = (
    FinishedHop(Member(0, "n0", "", 10), ModelRef("run/1/0/relay/0.0")),
    FinishedHop(Member(1, "n1", "", 11), ModelRef("run/1/0/relay/1.0")),
)
RESUMED = request("relay", attempt=1, finished=HOPS, planned=(0, 1, 2, 3), most_update_ratio=3.0, serial=7)
REQUESTS: list[group_pb2.RunGroupRequest] = [
    *(wire.encode(request(program)) for program in PROGRAMS.built_in),
    wire.encode(request("parallel", aggregation="fednova", reveal=Reveal("exact"), attempt=1)),
    wire.encode(request("parallel", most_update_ratio=2.0, tensors=START.tensors)),
    wire.encode(request("alone", results=Results.COLLECTED, reveal=Reveal("sketch:8"))),
    wire.encode(request("alone", results=Results.RETAINED, parts=PARTS, start=ModelRef("mean"))),
    wire.encode(request("compare", members=(Member(0, "n0", "", 10, Part(ModelRef("other"), "n0", 1.0, 0)),))),
    wire.encode(RESUMED),
    wire.encode(dataclasses.replace(RESUMED, tensors=START.tensors)),
]
WORDS = (
    *PROGRAMS.built_in,
    *("n0", "n1", "start", "other", "run", "sgd", "pfedme", "fednova", "exact", "layer:0", "sketch:16"),
    *(model_id for held in LEFT.values() for model_id in held),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bool]:
    if draw(st.integers(0, 4)) == 0:
        return draw(said(group_pb2.RunGroupRequest, REQUESTS, WORDS)), True
    return draw(near(draw(st.sampled_from(REQUESTS)), WORDS)).SerializeToString(), draw(st.integers(0, 4)) > 0


@fuzzed(35)
@given(asked=requests())
async def test_whatever_group_is_asked_for_it_ends_or_is_called_off_and_leaves_nothing(
    asked: tuple[bytes, bool],
) -> None:
    message, stays = asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager_server, "ATTACH_TIMEOUT_S", 0.02)
        async with unharmed(), AsyncExitStack() as stack:
            m = await stack.enter_async_context(manager())
            stores = [await stack.enter_async_context(node(m, name)) for name in LEFT]
            for store, left in zip(stores, LEFT.values(), strict=True):
                for model_id in left:
                    store.put(model_id, START)
            await run_group(m, message, ENDS_S if stays else 0.03, must_end=stays)
            good = wire.encode(request("describe", start_address=m.top_address))
            answers, status = await heard(m.channel.unary_stream(RUN_GROUP)(good.SerializeToString()), 5.0)
            assert (len(answers), status) == (4, grpc.StatusCode.OK)
            assert all(not store._waiting for store in stores)


def nodes_say() -> st.SearchStrategy[Any]:
    report = st.sampled_from(REPORTS[1:])
    return st.lists(st.none() | report | report.flatmap(lambda good: near(good, WORDS)), max_size=4)


@fuzzed(15)
@given(asked=st.sampled_from(REQUESTS), says=nodes_say())
async def test_whatever_a_node_answers_the_group_ends(asked: group_pb2.RunGroupRequest, says: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager_server, "ATTACH_TIMEOUT_S", 0.02)
        async with unharmed(), manager() as m, node(m, "n0") as store, parrot(m, "n1", says):
            await run_group(m, asked.SerializeToString(), ENDS_S, must_end=True, stall_timeout_s=0.1)
            assert not store._waiting


async def run_group(
    m: Manager, message: bytes, seconds: float, must_end: bool, stall_timeout_s: float = 0.5
) -> list[Any]:
    """What a group says to a top server that takes what it is told of; afterwards the manager holds nothing."""

    async def take(answer: bytes) -> None:
        await _forget(m, _told_of(message, _event(answer)))

    call = m.channel.unary_stream(RUN_GROUP)(_addressed(message, m.top_address, stall_timeout_s))
    answers, status = await heard(call, seconds, take)
    events = [_event(answer) for answer in answers]
    assert status is not None or not must_end, events
    if status is grpc.StatusCode.OK:
        last = events[-1]
        assert isinstance(last, GroupResult | Failure)
        if isinstance(last, Failure):
            assert last.code is not FailureCode.UNSPECIFIED or "no mem" in last.detail, last
    await until(lambda: not m.groups._groups)
    # All that stays here is what the top server has to fetch.
    await _forget(m, m.store._held)
    assert len(m.store) == 0
    return events


def _addressed(message: bytes, address: str, stall_timeout_s: float) -> bytes:
    try:
        asked = group_pb2.RunGroupRequest.FromString(message)
    except DecodeError:
        return message
    if asked.start_address == "TOP":
        asked.start_address = address
    # Longer work may be asked for, and is then done.
    asked.stall_timeout_s = min(asked.stall_timeout_s, stall_timeout_s)
    if asked.HasField("training"):
        asked.training.local_epochs = min(asked.training.local_epochs, 3)
    if asked.discrimination.HasField("settings"):
        asked.discrimination.exchanges = min(asked.discrimination.exchanges, 3)
        asked.discrimination.settings.steps = min(asked.discrimination.settings.steps, 3)
    return asked.SerializeToString()


def _event(answer: bytes) -> Any:
    return wire.decode(GroupEvent, group_pb2.GroupEvent.FromString(answer)).kind


def _told_of(asked: bytes, event: Any) -> list[str]:
    """The models that a top server takes when it hears this."""
    result = event.result if isinstance(event, MemberDone) else None
    if not isinstance(result, Trained):
        return []
    request = group_pb2.RunGroupRequest.FromString(asked)
    collects = request.program == "collect" or int(request.results) == Results.COLLECTED
    return [ref.id for ref in (result.ref if collects else None, result.update) if ref is not None]


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
        ({"program": "alone", "finished": HOPS}, "has no hops"),
        ({"finished": (FinishedHop(None, REF),)}, "no member or no model"),
        ({"finished": (FinishedHop(Member(7, "n0"), ModelRef("")),)}, "no member or no model"),
        ({"finished": (HOPS[0], dataclasses.replace(HOPS[0], model=REF))}, "a client is in the finished hops twice"),
        ({"finished": (HOPS[0], dataclasses.replace(HOPS[1], model=HOPS[0].model))}, "a model is in the finished"),
        ({"finished": (FinishedHop(Member(2**63, "n0"), REF),)}, "no possible id"),
        ({"finished": (FinishedHop(Member(7, "n0", "", 2**64 - 1), REF),)}, "more samples than can be"),
        ({"attempt": 2**16}, "no group has lost 65536 managers"),
        ({"planned": (0, 1)}, "not planned"),
        ({"planned": (0, 1, 2, 1)}, "planned twice"),
        ({"most_update_ratio": float("nan")}, "nan times as long"),
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
            await soon(call.read())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert why in str(refused.value.details())


async def recalled(attached: tuple[str, ...], **changes: Any) -> tuple[list[Any], set[str]]:
    """What is said of a relay that another manager began, and what the nodes still hold then."""
    async with unharmed(), AsyncExitStack() as stack:
        m = await stack.enter_async_context(manager())
        stores = [await stack.enter_async_context(node(m, name)) for name in attached]
        for store, name in zip(stores, attached, strict=True):
            for model_id in LEFT[name]:
                store.put(model_id, START)
        asked = dataclasses.replace(RESUMED, shuffle=False, most_update_ratio=0.0, stall_timeout_s=20.0, **changes)
        message = wire.encode(asked).SerializeToString()
        events = await run_group(m, message, 30.0, must_end=True, stall_timeout_s=20.0)
        held = [model_id for store in stores for model_id in store._held]
        await until(lambda: not any("relay" in model_id for store in stores for model_id in store._held))
        return events, set(held)


async def test_a_relay_goes_on_from_hops_whose_models_are_there() -> None:
    events, held = await recalled(("n0", "n1"))
    assert [event.client for event in events if isinstance(event, MemberDone)] == [2]
    assert isinstance(events[-1], GroupResult)
    assert "run/1/0/parallel/0.0" in held


@pytest.mark.parametrize("node_name", ["", "n7", "n0"])
async def test_a_finished_hop_whose_node_never_had_its_model_trains_again_or_is_passed_over(node_name: str) -> None:
    stranger = FinishedHop(Member(3, node_name), ModelRef("run/1/0/relay/2.0"))
    events, _ = await recalled(("n0", "n1"), finished=(*HOPS, stranger))
    trained = [event.client for event in events if isinstance(event, MemberDone)]
    assert trained == ([3, 2] if node_name == "n0" else [2])
    assert isinstance(events[-1], GroupResult)


async def test_a_finished_hop_of_a_model_of_others_does_not_count() -> None:
    foreign = FinishedHop(Member(0, "n0"), ModelRef("run/1/0/parallel/0.0"))
    events, held = await recalled(("n0", "n1"), finished=(foreign,))
    assert [event.client for event in events if isinstance(event, MemberDone)] == [0, 1, 2]
    assert "run/1/0/parallel/0.0" in held
