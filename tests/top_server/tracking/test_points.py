"""What trackers are told, made from events."""

from __future__ import annotations

from typing import Any

from top_server.tracking.base import Outcome, Points
from top_server.tracking.points import Gathered

TIME = "2026-01-01T00:00:00.000Z"


def hop(client: int, group: int = 0, **more: Any) -> dict[str, Any]:
    told = {"loss": 1.0, "seconds": 0.5, "samples": 10, "bytes": 100, "program": "relay"}
    return {"event": "hop_finished", "time": TIME, "round": 1, "client": client, "group": group, **told, **more}


def skip(client: int, program: str = "relay", group: int = 0) -> dict[str, Any]:
    return {"event": "client_skipped", "time": TIME, "client": client, "group": group, "program": program}


def finished(**columns: Any) -> dict[str, Any]:
    return {"event": "round_finished", "time": TIME, "round": 1, **columns}


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"event": kind, "time": TIME, **more}


def points(*events: dict[str, Any]) -> Points:
    gathered = Gathered()
    *before, last = [gathered.note(one) for one in events]
    assert before == [None] * len(before)
    assert isinstance(last, Points)
    return last


def test_the_figures_of_a_row_keep_their_names() -> None:
    row = {"accuracy": 0.5, "loss": 2, "seconds": 1.5, "bytes_direct": 7, "partition": [[0]], "ipr": None}
    assert points(finished(**row)).values == {
        "accuracy": 0.5,
        "loss": 2.0,
        "seconds": 1.5,
        "bytes_direct": 7.0,
        "score": 0.5,
    }


def test_a_score_of_the_task_stands_beside_its_metrics_and_those_of_validation() -> None:
    row = {
        **{"scored_by": "f1", "score": 0.25, "metrics": {"f1": 0.25, "auc": None}, "accuracy": None},
        "metrics_per_client": {"f1": {"0": 0.5, "1": None}},
        "score_per_client": {"0": 0.5},
        "validation": {"accuracy": 0.75, "metrics": {"f1": 0.125}, "behind_score": {"0": [1, 1, 1]}},
    }
    assert points(finished(**row)).values == {
        "score": 0.25,
        "metrics/f1": 0.25,
        "client/0/score": 0.5,
        "client/0/f1": 0.5,
        "validation/accuracy": 0.75,
        "validation/score": 0.75,
        "validation/metrics/f1": 0.125,
    }


def test_groups_and_clients_have_their_training() -> None:
    values = points(hop(0), hop(1, loss=4.0, samples=30), hop(2, 1, loss=None), skip(3, group=1), finished()).values
    assert values["client/1/train_loss"] == 4.0
    assert values["client/1/train_seconds"] == 0.5
    assert values["group/0/train_loss"] == (10 * 1.0 + 30 * 4.0) / 40
    assert (values["group/0/clients_trained"], values["group/0/bytes"]) == (2, 200)
    assert (values["group/1/clients_trained"], values["group/1/clients_skipped"]) == (1, 1)
    assert "group/1/train_loss" not in values


def test_only_the_last_training_of_a_client_counts_and_surveys_skip_nobody() -> None:
    values = points(hop(0, loss=9.0), hop(0), skip(1, "evaluate"), finished()).values
    assert values["group/0/train_loss"] == 1.0
    assert values["group/0/clients_skipped"] == 0


def test_a_round_that_is_tried_again_begins_afresh_and_one_that_is_resumed_keeps_its_hops() -> None:
    assert "client/0/train_loss" not in points(hop(0), event("round_failed"), hop(1), finished()).values
    assert "client/0/train_loss" not in points(hop(0), event("round_started"), hop(1), finished()).values
    resumed = (event("round_resumed"), event("round_started"))
    assert {"client/0/train_loss", "client/1/train_loss"} <= points(hop(0), *resumed, hop(1), finished()).values.keys()


def test_an_end_has_its_reason() -> None:
    told = Gathered().note(event("run_failed", reason="the disk is full", remedy="make room"))
    assert isinstance(told, Outcome)
    assert (told.kind, told.reason) == ("failed", "the disk is full; make room")
