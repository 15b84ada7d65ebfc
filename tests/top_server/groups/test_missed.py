"""Which clients missed a round."""

from __future__ import annotations

from typing import Any

from fedgsp.messages import Failure, FailureCode, GroupResult, MemberDone, MemberSkipped, ModelRef, Trained
from top_server.absences import AWAY, LEFT_OUT, Missed
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.groups.missed import missed_in, not_placed, without
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.nodes.departures import Departure

MANAGER: Any = None
LOST = Departure("n1", frozenset({2, 3, 4}), "its stream was lost", 0.0)
SKIPPED = Failure(FailureCode.NODE_LOST, "its node left")


def outcome(trained: tuple[int, ...], skipped: tuple[int, ...] = ()) -> GroupOutcome:
    task = GroupTask(0, "parallel", tuple(sorted(trained + skipped)))
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
