"""What lines and the live view tell of scores, metrics and names of clients."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.top_server.view.test_view import ROW, drawn, event, started, state_after
from top_server.record.events import KINDS
from top_server.view.lines import describe
from top_server.view.state import ViewState


def test_a_line_begins_with_what_rates_the_models() -> None:
    mae = {"scored_by": "-mae", "score": -2.0, "accuracy": None}
    metrics = {"auc": None, "mae": 2.0, "rmse\x1b": 3.0}
    row = event("round_finished", round=3, **{**ROW, **mae}, metrics=metrics)
    told = "mae 2.0000, rmse\\x1b 3.0000, loss 1.2500"
    assert describe(row) == f"round 3: - of - groups, - clients, {told}, 8.0 s, 1.5 MB"
    assert describe(event("run_finished", rounds=3, seconds=9.0, **mae)) == "run finished: 3 rounds, mae 2.0000, 9.0 s"
    by_loss = {"scored_by": "-loss", "score": -1.25, "accuracy": None}
    row = event("round_finished", round=3, **{**ROW, **by_loss})
    assert describe(row) == "round 3: - of - groups, - clients, loss 1.2500, 8.0 s, 1.5 MB"
    alone = event("local_round_finished", round=3, rounds=3, seconds=1.0, **mae)
    assert describe(alone) == "alone: round 3 of 3, mae 2.0000, 1.0 s"
    served = event("clients_served", scored_by="-mae", mean=-2.0, std=1.0, min=-3.0, max=-1.0)
    assert describe(served) == "-mae over the clients: mean -2.0000, deviation 1.0000, from -3.0000 to -1.0000"


def test_a_task_with_metrics_has_them_beside_accuracy() -> None:
    row = event("round_finished", round=3, **ROW, metrics={f"m{n}": n / 2 for n in range(9)})
    shown = ", ".join(f"m{n} {n / 2:.4f}" for n in range(5))
    told = f"accuracy 0.5000, {shown}, loss 1.2500"
    assert describe(row) == f"round 3: - of - groups, - clients, {told}, 8.0 s, 1.5 MB"


def test_clients_are_called_by_their_names_beside_their_numbers() -> None:
    state = state_after(event("node_joined", node="a", clients=2, names={"3": "Charité", "5": "Gh\x1bent"}))
    skipped = event("client_skipped", round=1, group=0, client=3, reason="gone")
    assert state.apply(skipped) == "round 1, group 0: client 3 (Charité) was skipped: gone"
    skipped = event("client_skipped", round=1, group=0, client=3, node="b\x1b", reason="gone")
    assert state.apply(skipped) == "round 1, group 0: client 3 (Charité) of node b\\x1b was skipped: gone"
    left_out = event("metric_left_out", round=1, metric="auc", clients=[3, 4, 5], reason="it is not a finite number")
    assert state.apply(left_out) == (
        "round 1: auc of clients 3 (Charité), 4, 5 (Gh\\x1bent) is left out: it is not a finite number"
    )
    missed = event("clients_missed", clients=[3], first=1, last=2, code="AWAY", reason="its node was away")
    assert state.apply(missed) == "client 3 (Charité) missed rounds 1 to 2: its node was away"


def test_the_live_view_shows_what_rates_the_models_and_metrics() -> None:
    mae = {"scored_by": "-mae", "accuracy": None}
    rows = [
        event("round_finished", round=n, **{**ROW, **mae}, score=-4.0 / n, metrics={"mae": 4.0 / n, "r2": 0.5})
        for n in (1, 2)
    ]
    state = state_after(*started(), *rows)
    assert (state.rated_by, state.ratings, state.metrics) == ("mae", [4.0, 2.0], {"r2": 0.5})
    assert any("mae 2.0000 █▁   r2 0.5000   loss 1.2500" in line for line in drawn(state, width=120))
    state = state_after(*started(), event("round_finished", round=1, **ROW, scored_by="-loss", score=-1.25))
    assert sum(line.count("loss 1.2500") for line in drawn(state, width=120)) == 1


def an_example(kind: Any) -> Any:
    """A value of this type."""
    inner = [one for one in typing.get_args(kind) if one is not type(None)]
    match typing.get_origin(kind):
        case typing.Union | types.UnionType:
            return an_example(inner[0])
        case found if found is Sequence:
            return [an_example(inner[0])]
        case found if found is Mapping:
            return {str(an_example(inner[0])): an_example(inner[1])}
    return {int: 1, float: 0.5, bool: True}.get(kind, "x")


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_with_every_field_can_be_shown(kind: str) -> None:
    types_of = typing.get_type_hints(KINDS[kind])
    fields = {field.name: an_example(types_of[field.name]) for field in dataclasses.fields(KINDS[kind])}
    state = ViewState()
    state.apply(event("node_joined", node="x", clients=1))
    state.apply(event(kind, **fields))
    assert drawn(state)


def test_the_address_of_a_door_for_monitoring_is_no_metric() -> None:
    listening = event("listening", address="127.0.0.1:1", metrics="127.0.0.1:2")
    assert describe(listening) == "listening on 127.0.0.1:1"


def test_a_loss_that_is_no_number_any_more_is_not_shown_as_the_last_good_one() -> None:
    state = state_after(*started(), event("round_finished", round=1, **ROW), event("round_finished", round=2))
    assert state.loss == 1.25  # round 2 was not evaluated
    state.apply(event("round_finished", round=3, **{**ROW, "loss": None}))
    assert [state.ratings[-1], state.loss] == [0.5, None]
