"""Bytes that a group moved count, under managers that were lost too."""

from __future__ import annotations

from typing import Any

from fedgsp.messages import Failure, FailureCode, GroupResult, MemberDone, ModelRef, Source, SourceKind, Trained
from top_server.groups.moved import Moved
from top_server.groups.task import GroupOutcome, GroupTask, Trace

MANAGER: Any = None
TASK = GroupTask(0, "relay", (0, 1, 2))
LOST = Failure(FailureCode.UNREACHABLE, "it is gone")


def done(client: int, kind: SourceKind | None, size: int) -> MemberDone:
    source = None if kind is None else Source(kind, "x")
    return MemberDone(client, client, Trained(ModelRef("m"), 5, source=source, bytes=size))


def outcome(result: GroupResult | Failure, *members: MemberDone, trace: Trace | None = None) -> GroupOutcome:
    return GroupOutcome(TASK, MANAGER, result, members, (), trace=trace or Trace())


def test_a_manager_that_lives_has_counted() -> None:
    told = GroupResult(ModelRef("m"), 5, 30, 40)
    assert outcome(told, done(0, SourceKind.NODE, 7)).moved == Moved(30, 40)


def test_of_a_lost_one_there_is_what_its_members_told() -> None:
    members = (
        done(0, SourceKind.TOP_SERVER, 5),
        done(1, SourceKind.NODE, 7),
        done(2, SourceKind.MANAGER, 11),
        done(3, SourceKind.LOCAL, 0),
        done(4, None, 0),
    )
    assert outcome(LOST, *members).moved == Moved(7, 16)


def test_the_next_manager_goes_on_counting() -> None:
    first = outcome(LOST, done(0, SourceKind.TOP_SERVER, 5))
    second = outcome(LOST, done(1, SourceKind.NODE, 7), trace=Trace().after(first))
    last = outcome(GroupResult(ModelRef("m"), 5, 30, 40), trace=Trace().after(first).after(second))
    assert last.moved == Moved(37, 45)
