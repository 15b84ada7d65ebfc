"""Whose training is in the result of a group, and whose is in none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.messages import (
    Failure,
    FailureCode,
    FinishedHop,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    Trained,
)
from top_server.groups.task import GroupOutcome, GroupTask

MANAGER: Any = None
TRAINED = Trained(ModelRef("of a member"), 5)
RESULT = GroupResult(ModelRef("m"), 5, 0, 0)
LEFT = Failure(FailureCode.NODE_LOST, "its node left")
FULL = Failure(FailureCode.UNSPECIFIED, "the group manager is full")


def outcome(program: str, result: GroupResult | Failure) -> GroupOutcome:
    """Of four members the first two have trained, the third was skipped, and the last has not begun."""
    return GroupOutcome(
        GroupTask(0, program, (0, 1, 2, 3)),
        MANAGER,
        result,
        done=tuple(MemberDone(client, client, TRAINED, 1.0 + client) for client in (0, 1)),
        skipped=(MemberSkipped(2, LEFT),),
        hops=(FinishedHop(Member(0, "n0"), ModelRef("h"), 1.0),) if program == "relay" else (),
    )


@pytest.mark.parametrize(
    ("program", "result", "trained"),
    [
        ("parallel", RESULT, [0, 1]),
        ("relay", RESULT, [0, 1]),
        ("alone", RESULT, [0, 1]),
        ("parallel", FULL, []),
        ("relay", FULL, []),
        ("alone", FULL, [0, 1]),  # each has a result of its own
    ],
)
def test_members_of_a_group_without_its_model_took_no_part(
    program: str, result: GroupResult | Failure, trained: list[int]
) -> None:
    found = outcome(program, result)
    assert sorted(found.took_part) == trained
    assert sorted(found.missed) == [client for client in range(4) if client not in trained]
    assert found.update_lengths == [1.0 + client for client in trained]


def test_of_clients_that_train_alone_each_is_a_group_with_a_result_or_a_reason() -> None:
    shared = outcome("alone", FULL)
    task = dataclasses.replace(shared.task, groups_of_one={0: 5, 1: 6, 2: 7, 3: 8})
    found = dataclasses.replace(shared, task=task)
    assert found.failed_groups(None) == {7: LEFT, 8: FULL}
    assert found.failed_groups(FULL) == dict.fromkeys((5, 6, 7, 8), FULL)
