"""Who is away, since when, and for how long a round waits."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import StoppedClock
from top_server.nodes.departures import AFTER_FREEZE_S, RETURN_S, WITHOUT, Cause, Departed, Departures


def departures() -> tuple[Departures, StoppedClock]:
    clock = StoppedClock()
    return Departures(clock), clock


def test_a_node_that_comes_back_is_told_for_how_long_it_was_away() -> None:
    found, clock = departures()
    found.left("n0", [1, 5], "its stream was lost")
    clock.now = 12.5
    [(gone, seconds)] = found.away()
    assert (gone.node, set(gone.clients), gone.reason, seconds) == ("n0", {1, 5}, "its stream was lost", 12.5)
    assert found.joined("n0", [1, 5]) == 12.5
    assert found.away() == []
    assert found.take_returned() == {1: 12.5, 5: 12.5}
    assert found.take_returned() == {}


def test_another_top_server_goes_on_with_the_nodes_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    found, clock = departures()
    found.left("n0", [5, 1], "its stream was lost")
    clock.now = 12.5
    saved = [Departed.from_json(json.loads(json.dumps(dataclasses.asdict(one)))) for one in found.save()]
    assert saved == [Departed("n0", (1, 5), "its stream was lost", 987.5)]
    monkeypatch.setattr("time.time", lambda: 1020.0)
    later, clock = departures()
    clock.now = 3.0
    later.restore(saved)
    [(gone, seconds)] = later.away()
    assert (gone.node, set(gone.clients), gone.reason, seconds) == ("n0", {1, 5}, "its stream was lost", 32.5)
    assert later.patience_s() == 0
    assert later.joined("n0", [1, 5]) == 32.5


def test_a_node_that_was_never_there_was_not_away() -> None:
    found, _ = departures()
    assert found.joined("n0", [1]) is None


def test_a_client_that_another_node_brings_is_there_again() -> None:
    found, clock = departures()
    found.left("n0", [1, 5], "lost")
    clock.now = 3.0
    assert found.joined("n1", [5]) is None
    assert found.clients == {1}
    assert found.take_returned() == {5: 3.0}
    found.joined("n2", [1])
    assert found.away() == []


def test_a_client_that_its_node_came_back_without_is_still_away() -> None:
    found, clock = departures()
    found.left("n0", [1, 5], "its stream was lost")
    clock.now = 3.0
    assert found.joined("n0", [1]) == 3.0
    assert (found.clients, found.dropped(5), found.dropped(1)) == ({5}, True, False)
    clock.now = 60.0
    found.left("n0", [1], "its connection ended")
    told = [(gone.node, set(gone.clients), gone.reason, seconds) for gone, seconds in found.away()]
    assert told == [("n0", {5}, WITHOUT, 60.0), ("n0", {1}, "its connection ended", 0.0)]
    clock.now = 62.0
    assert found.joined("n0", [1, 5]) == 2.0
    assert found.away() == []
    assert found.take_returned() == {1: 2.0, 5: 62.0}


def test_a_node_that_was_there_when_its_run_was_stopped_was_not_away_for_as_long_as_a_client_that_it_lacks() -> None:
    before, _ = departures()
    before.left("n0", [1, 5], "its stream was lost")
    before.joined("n0", [1])
    after, clock = departures()
    after.restore(before.save())
    clock.now = 3600.0
    assert after.joined("n0", [1]) is None
    assert after.joined("n0", [1, 5]) is None
    assert after.take_returned() == {5: pytest.approx(3600.0, abs=60)}


def test_a_client_that_came_back_is_told_with_what_took_it_away_until_it_is_taken() -> None:
    found, clock = departures()
    found.left("n0", [1, 5], "its stream was lost")
    clock.now = 3.0
    found.joined("n0", [1, 5])
    assert found.returned([2]) == []
    [(gone, seconds)] = found.returned([2, 5])
    assert (gone.node, set(gone.clients), gone.reason, seconds) == ("n0", {5}, "its stream was lost", 3.0)
    found.take_returned()
    assert found.returned([5]) == []


@given(st.sampled_from(Cause), st.floats(0, 100))
def test_a_round_waits_a_moment_for_a_node_and_longer_after_a_freeze_of_the_top_server(
    cause: Cause, later: float
) -> None:
    found, clock = departures()
    found.left("n0", [1], "lost", cause)
    clock.now = later
    most = {Cause.ALONE: RETURN_S, Cause.FREEZE: AFTER_FREEZE_S}[cause]
    assert found.patience_s() == pytest.approx(max(0.0, most - later))
    assert found.patience_s([1, 2]) == found.patience_s()
    assert found.patience_s([2]) == 0
