"""No line of a record is longer than its readers take, however many clients a run has and whatever a node reports."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import RunError
from fedgsp.files import MOST_LINE
from fedgsp.messages import MOST_CLIENT, Evaluated
from fedgsp.scoring import MOST_METRICS
from top_server.evaluation import Evaluation
from top_server.nodes import told_names
from top_server.nodes.admission import MOST_CLIENTS
from top_server.record.directory import RunDirectory
from top_server.record.events import KINDS
from top_server.record.events.base import ABSENT, MayLack
from top_server.record.events.evidence import TimesExpected
from top_server.record.events.processes import NodeJoined
from top_server.record.events.rounds import RoundFinished, RoundStarted
from top_server.record.events.run import StateDamaged
from top_server.record.figures import _served
from top_server.record.history import read_lines
from top_server.record.journal import Journal
from top_server.record.short import short


def test_fields_are_left_out_in_their_order_until_the_line_is_short() -> None:
    line = {"round": 1, "validation": {"a": "x" * 50, "b": 1}, "a": "x" * 50, "c": 2}
    may_lack = [MayLack("validation.a", 120), MayLack("validation.a", 120), MayLack("a", 120), MayLack("c", 120)]
    found = short(line, may_lack)
    assert found.left_out == ("validation.a",)
    assert found.line == {"round": 1, "validation": {"b": 1}, "a": "x" * 50, "c": 2}
    assert found.bytes > 120 > len(found.text)
    assert short(line, [MayLack("validation.none", 1), MayLack("none.a", 1), MayLack("a", MOST_LINE)]).line == line
    assert line["validation"] == {"a": "x" * 50, "b": 1}


def test_what_one_node_reports_leaves_the_record_readable(tmp_path: Path) -> None:
    metrics = {f"m{number}": 1 / 3 + number for number in range(MOST_METRICS)}
    served = _served(
        Evaluation({client: Evaluated(1, 3, 1.0, judged=3, metrics=metrics) for client in range(6_000)}), True
    )
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal:
        for number in (1, 2):
            told = journal.finish_round(RoundFinished(round=number, **served))
            assert len(told["metrics_per_client"]) == MOST_METRICS
    rows, events = read_lines(directory.history), read_lines(directory.events)
    assert [len(row["accuracy_per_client"]) for row in rows] == [6_000, 6_000]
    assert not any("metrics_per_client" in line for line in (*rows, *events))
    assert rows[0]["metrics"] == pytest.approx(metrics)
    assert [event["event"] for event in events] == ["fields_left_out", "round_finished", "round_finished"]
    assert (events[0]["kind_of_event"], events[0]["left_out"]) == ("round_finished", ["metrics_per_client"])
    assert "the line would have" in events[0]["reason"]


def test_a_line_that_is_still_too_long_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp.files.MOST_LINE", 1_000)
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal:
        journal.record(StateDamaged(reason="short"))
        with pytest.raises(
            RunError, match=r"events\.jsonl gets no line of 1,\d+ bytes: a reader takes fewer than 1,000"
        ):
            journal.record(StateDamaged(reason="long" * 250))
        journal.record(StateDamaged(reason="next"))
    assert [line["reason"] for line in read_lines(directory.events)] == ["short", "next"]


def test_every_event_with_a_value_for_each_client_may_lack_it() -> None:
    bounded = {(NodeJoined.kind(), "names")}  # by `told_names`
    assert 3 * told_names.MOST_BYTES < MOST_LINE
    for kind, event in KINDS.items():
        lacking = {one.field for one in event.may_lack}
        fields = {field.name: field for field in event.__dataclass_fields__.values()}
        assert all(fields[name].default is ABSENT for name in lacking if "." not in name), kind
        for name, found in typing.get_type_hints(event).items():
            if name in fields and "Mapping[int" in str(found).replace("collections.abc.", ""):
                assert name in lacking or (kind, name) in bounded, (kind, name)


@pytest.mark.parametrize(
    "event",
    [
        RoundStarted(
            round=1, groups=0, sampled_groups=0, clients=0, teams=[[MOST_CLIENT]] * MOST_CLIENTS, reason="r" * 1_000
        ),
        TimesExpected(round=1, seconds={}, by_samples=[MOST_CLIENT] * MOST_CLIENTS),
    ],
    ids=lambda event: event.kind(),
)
def test_a_list_of_a_million_clients_fits(event: Any, tmp_path: Path) -> None:
    with Journal(RunDirectory(tmp_path)) as journal:
        journal.record(event)
    (line,) = read_lines(RunDirectory(tmp_path).events)
    assert len(line["teams" if "teams" in line else "by_samples"]) == MOST_CLIENTS


def test_of_a_million_clients_one_value_for_each_fits_but_not_two() -> None:
    values = {str(MOST_CLIENT - client): -1 / 3e-9 for client in range(MOST_CLIENTS)}
    found = short({"accuracy_per_client": values, "score_per_client": values}, RoundFinished.may_lack)
    assert found.left_out == ("accuracy_per_client",)
    assert len(found.text) < MOST_LINE
