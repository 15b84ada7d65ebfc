"""What a person can do about troubles: fields that a line of the record lacks."""

from __future__ import annotations

import pytest

from top_server.record.events.evidence import TimesExpected
from top_server.record.events.rounds import RoundFinished
from top_server.report.remedies import remedy_of
from top_server.report.troubles import TROUBLES, troubles

FEWER = "let metrics() of the task return fewer figures; those over all clients are recorded"
NOTHING = "nothing: a line has no room for a value of each of so many clients, and the run goes on without it"


def remedy(*fields: str) -> str:
    return remedy_of({"event": "fields_left_out", "left_out": [*fields]})


def test_fewer_metrics_help_where_metrics_are_left_out_and_nowhere_else() -> None:
    fields = [one.field for one in (*RoundFinished.may_lack, *TimesExpected.may_lack)]
    metrics = [one for one in fields if "metrics" in one]
    assert len(metrics) == 2
    assert {remedy(one) for one in metrics} == {remedy(*metrics)} == {FEWER}
    assert {remedy(one) for one in fields if one not in metrics} == {NOTHING}
    assert remedy(*fields) == f"{FEWER}; {NOTHING}"


def test_each_trouble_has_a_remedy() -> None:
    assert all(remedy_of({"event": kind, "reason": "it"}) for kind in TROUBLES)
    (found,) = troubles([{"event": "fields_left_out", "left_out": ["partition"], "reason": "it"}], {})
    assert found.remedy == NOTHING


@pytest.mark.parametrize("left_out", [None, 3, [], [["partition"]]])
def test_a_damaged_event_has_a_remedy(left_out: object) -> None:
    assert remedy_of({"event": "fields_left_out", "left_out": left_out}) == NOTHING
