"""A group manager that somebody has taken over tells lies: they reach no further than its own group."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from fedgsp import wire
from fedgsp.messages import (
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    NetworksLeft,
    Part,
    PartLost,
    RelayMode,
    Rerouted,
    RunGroupRequest,
    Trained,
)
from fedgsp.v1 import group_pb2
from tests.support.callers import ISSUER, over
from tests.support.fuzzing import path, soon, speaking
from tests.support.recorder import Recorder
from tests.support.serving import serving
from top_server.groups.task import Trace
from top_server.groups.watch import GroupWatch
from top_server.managers import client as manager_client
from top_server.managers.client import ManagerClient, most_events
from top_server.progress import Progress
from top_server.record.audit import NO_AUDIT

#: A relay of two clients that are there and one that is away, after a hop under an earlier manager.
REQUEST = RunGroupRequest(
    *("run", 1, 0, "relay", (Member(4, "n0", samples=10), Member(5, "n1", samples=7)), ModelRef("start"), ""),
    *(RelayMode.AUTO, False, None, 1.0, 40),
    parts=(Part(ModelRef("of 8"), "n0", 1.0, 8),),
    planned=(4, 5, 6),
    finished=(FinishedHop(Member(4, "n0", samples=10), ModelRef("m")),),
)
WRONG = Failure(FailureCode.WRONG_SHAPES, "so it is")


class Top:
    """The part of a top server that hears of a group."""

    def __init__(self) -> None:
        self.offences: list[int] = []
        self.recorder = Recorder()
        context: Any = SimpleNamespace(
            journal=self.recorder,
            audit=NO_AUDIT,
            membership=SimpleNamespace(note_offence=self.offences.append, certificate=lambda _: b""),
        )
        manager: Any = SimpleNamespace(name="m0")
        self.watch = GroupWatch(context, Progress(), REQUEST, manager, Trace())

    def hear(self, kind: Any) -> None:
        self.watch(GroupEvent(kind))


def test_a_manager_blames_no_client_of_another_group() -> None:
    top = Top()
    for client in (4, 6, 7, 2**64 - 1):
        for _ in range(3):
            top.hear(MemberSkipped(client, WRONG))
            top.hear(Rerouted(client, "so it is"))
    assert top.offences == [4, 4, 4, 6, 6, 6]
    assert {skipped.client for skipped in top.watch.skipped} == {4, 6}
    assert {event["client"] for event in top.recorder.events} == {4, 6}


def test_a_manager_loses_no_model_that_its_group_does_not_start_from() -> None:
    top = Top()
    for client in (4, 8, 9):
        top.hear(PartLost(client, Failure(FailureCode.NO_SUCH_MODEL, "so it is")))
    assert top.watch.lost.keys() == {8}


def test_a_group_counts_for_no_more_samples_than_its_members_have() -> None:
    top, result = Top(), GroupResult(ModelRef("m"), 17, 0, 0)
    assert top.watch.ended(result) == result
    for samples in (18, 2**64 - 1):
        refused = top.watch.ended(GroupResult(ModelRef("m"), samples, 0, 0))
        assert isinstance(refused, Failure)
        assert refused.code is FailureCode.BAD_RECEIPT
        assert refused.detail == f"manager m0 tells of {samples} samples of members that have 17"
    top.hear(MemberDone(5, 1, Trained(ModelRef("m2"), 8, 0.5, 0.1)))
    assert top.watch.done == []
    refused = top.watch.ended(result)
    assert isinstance(refused, Failure)
    assert refused.detail == "manager m0 tells of a result of client 5 on 8 samples, and it has 7"


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308, float("inf")])
def test_no_loss_of_one_member_makes_the_record_one_that_cannot_be_drawn(loss: float) -> None:
    top = Top()
    top.hear(MemberDone(5, 1, Trained(ModelRef("m2"), 7, loss, 0.1)))
    (told,) = top.recorder.of_kind("hop_finished")
    assert math.isnan(told["loss"])


@pytest.mark.parametrize("kind", [NetworksLeft(1, 2, 3), Rerouted(4, "so it is"), MemberSkipped(4, WRONG)])
async def test_a_group_of_which_a_manager_tells_without_end_is_given_up(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_client, "MOST_EVENTS", 2)
    heard: list[GroupEvent] = []
    events = [wire.encode(GroupEvent(kind)).SerializeToString()] * (most_events(REQUEST) + 1)
    async with serving(speaking(path("GroupService", "RunGroup"), events)) as served:
        ended = await soon(ManagerClient("m0", over(served.channel), ISSUER).run_group(REQUEST, heard.append))
    assert ended == Failure(FailureCode.BAD_STREAM, "manager m0 tells of its group without end")
    assert len(heard) == most_events(REQUEST) == 8


async def test_a_text_without_end_is_not_taken_into_the_record() -> None:
    message = group_pb2.GroupEvent(rerouted=group_pb2.Rerouted(client=4, reason="x" * 20_000)).SerializeToString()
    heard: list[GroupEvent] = []
    async with serving(speaking(path("GroupService", "RunGroup"), [message])) as served:
        ended = await soon(ManagerClient("m0", over(served.channel), ISSUER).run_group(REQUEST, heard.append))
    assert isinstance(ended, Failure)
    assert ended.detail.startswith("manager m0 said what is too large: ")
    assert heard == []
