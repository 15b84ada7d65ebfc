"""What monitoring sees of a run, made from its events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.clock import StoppedClock
from top_server.metrics.door import pages_of
from top_server.metrics.state import State, unhealthy

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
STARTED = {"event": "run_started", "run": "abcd1234", "scheme": 'a"b\\', "round": 0, "rounds": 9}


def state(*events: dict[str, Any]) -> State:
    """The state after these events, one in each second."""
    clock = StoppedClock()
    found = State(clock=clock)
    for second, event in enumerate(events):
        clock.now = float(second)
        found.note({"time": datetime.fromtimestamp(BEGAN + second, UTC).isoformat(), **event})
    return found


def why(found: State, second: float) -> str:
    """Why the run is not healthy so many seconds after its first event, if a minute without an event is too long."""
    found.clock = lambda: second
    return unhealthy(found, 60)


def figures(found: State) -> dict[str, float]:
    """Name and labels -> value, as a reader of Prometheus finds them."""
    body = pages_of(found, 60.0)["/metrics"]().body.decode()
    return {
        one.name + "".join(f" {key}={value}" for key, value in sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(body)
        for one in family.samples
    }


def test_figures_follow_the_events() -> None:
    row = {"event": "round_finished", "round": 1, "seconds": 2.5, "bytes_direct": 7, "bytes_relayed": 3}
    found = figures(
        state(
            {"event": "node_joined", "node": "n0", "clients": 3},
            {"event": "node_joined", "node": "n1", "clients": 2},
            STARTED,
            {"event": "round_started", "round": 1},
            {"event": "client_skipped", "client": 1, "code": "TIMED_OUT"},
            {**row, "accuracy": 0.5, "loss": 1.5, "bytes_travelled": 5, "metrics": {"auc": 0.75, "none": None}},
            {"event": "node_left", "node": "n1"},
            {"event": "round_started", "round": 2},
            {**row, "round": 2, "accuracy": None, "loss": None},
        )
    )
    expected = {
        **{"fedgsp_round": 2, "fedgsp_rounds": 9, "fedgsp_nodes": 1, "fedgsp_clients": 3, "fedgsp_failed": 0},
        **{"fedgsp_score": 0.5, "fedgsp_loss": 1.5, "fedgsp_round_seconds": 2.5},
        **{"fedgsp_task_metric name=auc": 0.75, "fedgsp_clients_skipped_total code=TIMED_OUT": 1},
        **{"fedgsp_bytes_total way=direct": 14, "fedgsp_bytes_total way=relayed": 6},
        **{"fedgsp_bytes_total way=travelled": 5, "fedgsp_events_total event=round_finished": 2},
        "fedgsp_last_event_timestamp_seconds": BEGAN + 8,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert any(name.startswith("fedgsp_run_info") and 'scheme=a"b\\' in name for name in found)
    assert found["process_cpu_seconds_total"] > 0


def test_a_run_that_has_events_is_healthy_and_one_without_is_not() -> None:
    found = state(STARTED, {"event": "round_started", "round": 1})
    assert why(found, 60) == ""
    assert why(found, 100) == "no event for 99 s, in round 1 of 9"
    assert why(State(), 100) == ""


def test_a_run_stays_healthy_when_the_clock_of_its_machine_is_set() -> None:
    found = State(clock=lambda: 1000.0)
    found.note({**STARTED, "time": "2026-01-01T00:00:00+00:00"})  # years before the time of this machine
    page = pages_of(found, 60.0)["/healthz"]()
    assert (page.status, page.body) == (200, b"ok\n")


def test_a_run_that_waits_is_healthy_until_its_own_deadline() -> None:
    waits = {"event": "round_waits", "round": 2, "clients": 1, "needed": 2, "timeout": 500.0}
    found = state(STARTED, waits)
    assert why(found, 400) == ""
    assert "no event for" in why(found, 600)
    assert "no event for" in why(state(waits, {"event": "round_waited", "round": 2}), 400)


def test_a_run_that_has_failed_is_unhealthy_with_its_reason() -> None:
    failed = state(STARTED, {"event": "run_failed", "reason": "all nodes\nare lost", "remedy": "", "code": 6})
    assert why(failed, 0) == "the run has failed: all nodes\nare lost"
    page = pages_of(failed, 60.0)["/healthz"]()
    assert (page.status, page.body) == (503, b"the run has failed: all nodes\\nare lost\n")
    assert why(state({"event": "run_stopped", "code": 143}), 0).endswith("the top server was stopped")
    assert figures(failed)["fedgsp_failed"] == 1


def test_every_event_that_monitoring_counts_exists() -> None:
    from top_server.metrics import state as module
    from top_server.record.events import KINDS
    from top_server.tracking import points

    assert {*module._WAITS, *module._GOES_ON, *module._CHANGES, *points.KINDS} <= KINDS.keys()
