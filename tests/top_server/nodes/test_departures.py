"""Who is away, since when, and for how long a round waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from top_server.nodes.departures import AFTER_FREEZE_S, RETURN_S, Cause, Departures


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def departures() -> tuple[Departures, Clock]:
    clock = Clock()
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
