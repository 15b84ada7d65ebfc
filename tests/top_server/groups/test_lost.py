"""What a run says when nobody answered."""

from __future__ import annotations

import pytest

from fedgsp.messages import Failure, FailureCode
from top_server.groups.lost import AllLostError, unanswered, usual


@pytest.mark.parametrize(
    ("codes", "lost", "remedy"),
    [
        ([FailureCode.NODE_LOST, FailureCode.STALLED], True, "see events.jsonl"),
        ([FailureCode.POLICY] * 3, False, "start the nodes with what the reason names"),
        ([FailureCode.TASK_RAISED], False, "correct the task"),
        ([FailureCode.NOT_FINITE], False, "smaller --learning-rate"),
        ([FailureCode.BAD_ORDER], False, "settings in a new run"),
        ([FailureCode.POLICY, FailureCode.TASK_RAISED], False, "see events.jsonl"),
        ([FailureCode.POLICY, *[FailureCode.TASK_RAISED] * 2], False, "correct the task"),
        ([FailureCode.POLICY, *[FailureCode.NODE_LOST] * 9], True, "see events.jsonl"),
        ([*[FailureCode.POLICY] * 9, FailureCode.UNREACHABLE], True, "start the nodes with what the reason names"),
        ([], False, "see events.jsonl"),
    ],
)
def test_the_remedy_is_that_of_the_failures_if_they_are_alike(
    codes: list[FailureCode], lost: bool, remedy: str
) -> None:
    error = unanswered("nobody", [Failure(code, "") for code in codes])
    assert isinstance(error, AllLostError) == lost
    assert remedy in error.remedy


def test_a_reason_that_says_what_to_do_gets_no_other_advice() -> None:
    """Such as that of a package, whose training raised: to correct the task would not help."""
    told = "training late of package parts 1.0 raised IndexError: late; update or correct that package"
    error = unanswered("nobody", [Failure(FailureCode.TASK_RAISED, told)] * 2)
    assert error.remedy.startswith("do what the reason says, start the nodes again, then resume.")
    assert "correct the task" not in error.remedy


def test_the_reason_that_is_told_is_of_the_most_frequent_kind() -> None:
    policy, raised, other = (
        Failure(FailureCode.POLICY, "a"),
        Failure(FailureCode.TASK_RAISED, "b"),
        Failure(FailureCode.TASK_RAISED, "c"),
    )
    assert usual([raised, other, policy]) is other
    assert usual([policy, raised]) is raised
