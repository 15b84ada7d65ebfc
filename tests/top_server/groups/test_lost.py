"""What a run says when nobody answered."""

from __future__ import annotations

import pytest

from fedgsp.messages import Failure, FailureCode
from top_server.groups.lost import AllLostError, unanswered


@pytest.mark.parametrize(
    ("codes", "lost", "remedy"),
    [
        ([FailureCode.NODE_LOST, FailureCode.STALLED], True, "see events.jsonl"),
        ([FailureCode.POLICY] * 3, False, "start the nodes with what the reason names"),
        ([FailureCode.TASK_RAISED], False, "correct the task"),
        ([FailureCode.NOT_FINITE], False, "smaller --learning-rate"),
        ([FailureCode.BAD_ORDER], False, "settings in a new run"),
        ([FailureCode.POLICY, FailureCode.TASK_RAISED], False, "see events.jsonl"),
        ([], False, "see events.jsonl"),
        ([None], False, "see events.jsonl"),
    ],
)
def test_the_remedy_is_that_of_the_failures_if_they_are_alike(
    codes: list[FailureCode | None], lost: bool, remedy: str
) -> None:
    error = unanswered("nobody", [Failure(code, "") if code is not None else None for code in codes])
    assert isinstance(error, AllLostError) == lost
    assert remedy in error.remedy
