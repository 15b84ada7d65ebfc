"""Managers that say anything to the top server.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.errors import PeerError
from fedgsp.messages import (
    Described,
    Discriminated,
    Evaluated,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    NetworksLeft,
    OrderKey,
    PartLost,
    RelayMode,
    Rerouted,
    Results,
    RunGroupRequest,
    Served,
    Trained,
)
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers import stalls
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2
from tests.support.callers import ISSUER, over
from tests.support.fuzzing import ENDINGS, MOMENT_S, fuzzed, path, said, soon, speaking, unharmed
from tests.support.recorder import Recorder
from tests.support.serving import nobody, serving
from tests.support.weights import TENSORS
from top_server.grouping import GroupingRequest
from top_server.grouping_service import assign
from top_server.groups.task import Trace
from top_server.groups.watch import GroupWatch
from top_server.managers import client as manager_client
from top_server.managers.client import BrokenOff, ManagerClient
from top_server.progress import Progress
from top_server.record.audit import NO_AUDIT

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

RUN_GROUP = path("GroupService", "RunGroup")
REQUEST = RunGroupRequest(
    *("run", 1, 0, "alone", (Member(4, "n0", samples=10), Member(5, "n1", samples=10)), ModelRef("start"), ""),
    *(RelayMode.AUTO, False, None, 1.0, 40),
    results=Results.COLLECTED,
)
WHY = Failure(FailureCode.STALLED, "so it is")
TRAINED = Trained(ModelRef("m"), 5, 0.5, 0.1, update=ModelRef("m.update"))
EVENTS: list[group_pb2.GroupEvent] = [
    wire.encode(GroupEvent(kind))
    for kind in (
        MemberDone(4, 0, TRAINED),
        MemberDone(4, 0, Evaluated(1, 2, 0.5)),
        MemberDone(5, 1, Described((1, 2))),
        MemberDone(5, 1, Discriminated(ModelRef("nets"), (1,), 2)),
        MemberDone(4, 0, TRAINED, 0.0, OrderKey(1, "alone", 0, 0, 0, "run"), b"", b"", b"no certificate"),
        MemberSkipped(4, WHY),
        Served("m", "node n0", "", 40),
        Rerouted(4, "so it is"),
        PartLost(4, WHY),
        NetworksLeft(1, 2, 3),
        GroupResult(ModelRef("m", 40, b"digest"), 20, 40, 0),
        WHY,
    )
]
MANAGER_SAYS = said(group_pb2.GroupEvent, EVENTS, ("m", "m.update"))


class Unread:
    """Takes every update, and keeps none."""

    max_bytes = 40

    def came(self, client: int) -> bool:
        return False

    async def take(self, client: int, shown: Weights | Failure) -> str:
        return ""


def watcher(client: ManagerClient, recorder: Recorder) -> GroupWatch:
    """A watch that takes every model and every update."""

    context = SimpleNamespace(
        journal=recorder,
        audit=NO_AUDIT,
        membership=SimpleNamespace(note_offence=lambda _: None, certificate=lambda _: b""),
        tensors=TENSORS,
        why_not_trusted=lambda _: "",
        renewed=set(),
    )
    manager = SimpleNamespace(client=client, name="m0")
    return GroupWatch(context, Progress(), REQUEST, manager, Trace(), Unread())  # type: ignore[arg-type]


@fuzzed(30)
@given(events=st.lists(MANAGER_SAYS, max_size=5), ending=ENDINGS)
async def test_whatever_a_manager_says_its_group_ends_with_a_value(events: list[bytes], ending: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.02)
        patch.setattr(manager_client, "FORGET_TIMEOUT_S", 0.02)
        patch.setattr(manager_client, "ANSWER_TIMEOUT_S", 0.02)
        models = ModelServicer(ModelStore()).add_to
        async with unharmed(), serving(speaking(RUN_GROUP, events, ending), models) as served:
            client = ManagerClient("m0", over(served.channel), ISSUER)
            watch = watcher(client, Recorder())
            # A manager that says nothing more is busy: the connection's own pings tell whether it lives.
            running = asyncio.create_task(client.run_group(REQUEST, watch))
            await asyncio.wait([running], timeout=MOMENT_S if ending == "silence" else 5.0)
            assert running.done() or ending == "silence"
            if running.done():
                assert isinstance(running.result(), GroupResult | Failure | BrokenOff)
                await soon(watch.all_taken())
            running.cancel()
            watch.cancel()
            await asyncio.gather(running, *watch._taking, return_exceptions=True)
            assert {done.client for done in watch.done} <= {4, 5}


async def test_an_event_that_cannot_be_read_ends_the_group() -> None:
    async with serving(speaking(RUN_GROUP, [b"\xff\xff"])) as served:
        ended = await soon(ManagerClient("m0", over(served.channel), ISSUER).run_group(REQUEST, lambda _: None))
    assert ended == Failure(FailureCode.BAD_STREAM, "manager m0 said what cannot be read")


async def test_a_plan_that_cannot_be_read_is_an_error_of_that_service() -> None:
    question = GroupingRequest(1, 1, 1, (0,), np.array([5]))
    async with serving(speaking(path("GroupingService", "Assign"), [b"\xff\xff"], "end")) as served:
        with pytest.raises(PeerError, match="sent an answer that cannot be read"):
            await soon(assign(served.channel, served.address, "single", question))


async def test_what_a_stranger_did_does_not_count() -> None:
    async with nobody() as gone:
        watch = watcher(ManagerClient("m0", over(gone.channel), ISSUER), Recorder())
        for client in (4, 6, 2**64 - 1):
            watch(GroupEvent(MemberDone(client, 0, TRAINED)))
        assert [done.client for done in watch.done] == [4]
        watch.cancel()
        await asyncio.gather(*watch._taking, return_exceptions=True)


async def test_a_model_that_is_said_to_be_there_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.02)
    async with unharmed(), serving(ModelServicer(ModelStore()).add_to) as served:
        with pytest.raises(WeightsError) as refused:
            await soon(fetch(served.channel, "m", TENSORS, 40, promised=False))
    assert refused.value.failure.code is FailureCode.STALLED
