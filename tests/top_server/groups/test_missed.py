"""Which clients missed a round."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, GroupResult, MemberDone, MemberSkipped, ModelRef, Trained
from top_server.absences import AWAY, GROUP_FAILED, LEFT_OUT, Missed
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.groups.missed import missed_in, not_placed, without
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.nodes.departures import Departure

MANAGER: Any = None
LOST = Departure("n1", frozenset({2, 3, 4}), "its stream was lost", 0.0)
SKIPPED = Failure(FailureCode.NODE_LOST, "its node left")


FULL = Failure(FailureCode.UNSPECIFIED, "the group manager is full")


def outcome(trained: tuple[int, ...], skipped: tuple[int, ...] = (), program: str = "parallel") -> GroupOutcome:
    task = GroupTask(0, program, tuple(sorted(trained + skipped)))
    done = tuple(MemberDone(client, 0, Trained(ModelRef("m"), 5)) for client in trained)
    left_out = tuple(MemberSkipped(client, SKIPPED) for client in skipped)
    return GroupOutcome(task, MANAGER, GroupResult(ModelRef("m"), 5, 0, 0), done, left_out)


def test_a_client_that_came_back_in_time_to_train_missed_nothing() -> None:
    away = Missed(AWAY, "node n1 was away: its stream was lost", 9.0)
    found = missed_in([outcome((0, 2), (3,))], [(LOST, 9.0)], [7], {})
    assert found == {
        3: Missed("NODE_LOST", str(SKIPPED)),
        4: away,
        7: Missed(LEFT_OUT, "its models were refused"),
    }


def test_a_client_that_is_left_out_of_the_run_missed_the_round_for_that_and_not_because_nobody_hosts_it() -> None:
    again = outcome((0,), (3,))
    assert missed_in([again], [], [3], {}) == {3: Missed(LEFT_OUT, "its models were refused")}
    assert missed_in([again], [], [], {}) == {3: Missed("NODE_LOST", str(SKIPPED))}


def test_a_node_without_clients_that_are_away_is_left_out() -> None:
    assert without([(LOST, 9.0)], [2, 3, 4, 5]) == []
    [(gone, seconds)] = without([(LOST, 9.0)], [2])
    assert (gone.node, sorted(gone.clients), seconds) == ("n1", [3, 4], 9.0)


def test_a_client_that_gave_no_evidence_missed_the_round_unless_a_group_has_it_from_before() -> None:
    evidence = Evidence((0, 1, 4, 5), away={4: 10, 5: 10})
    plan = Plan(((0, 2), (4,)), idle=(6,))
    assert not_placed(range(8), evidence, plan) == {3, 5, 7}, "client 1 was not drawn, and 6 is idle"


def test_what_kept_a_client_from_giving_evidence_is_why_it_missed_the_round() -> None:
    refused = Failure(FailureCode.POLICY, "not here")
    assert missed_in([outcome((0,))], [], [], {3: refused}) == {3: Missed("POLICY", "policy: not here")}


@pytest.mark.parametrize(("program", "trained"), [("alone", {0, 1}), ("parallel", set())])
def test_who_trained_alone_before_the_task_failed_missed_nothing(program: str, trained: set[int]) -> None:
    ended = outcome((0, 1), (2,), program)
    ended = dataclasses.replace(ended, task=GroupTask(0, program, (0, 1, 2, 3)), result=FULL)
    failed = Missed(GROUP_FAILED, f"its group failed: {FULL}")
    expected = {**dict.fromkeys(range(4), failed), 2: Missed("NODE_LOST", str(SKIPPED))}
    assert missed_in([ended], [], [], {}) == {client: why for client, why in expected.items() if client not in trained}
