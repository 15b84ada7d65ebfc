"""A clock that stands still while the process is frozen."""

from __future__ import annotations

import time
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.processes.awake import BEAT_S, LONGEST_PAUSE_S, Awake, always

PAUSES = st.lists(st.floats(0, 1000), max_size=30)


class Hand:
    """The hand of a clock that a test moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@given(PAUSES)
def test_time_never_goes_back_and_never_runs_ahead(pauses: list[float]) -> None:
    hand = Hand()
    awake, told = Awake(hand), [0.0]
    for moment in accumulate(pauses):
        hand.at = moment
        told.append(awake.time())
        assert told[-2] <= told[-1] <= hand.at + 1e-6
    assert told[-1] <= len(pauses) * LONGEST_PAUSE_S + 1e-6


@given(st.lists(st.floats(0, BEAT_S), max_size=100))
def test_a_process_that_looks_all_the_time_has_the_time_of_its_clock(pauses: list[float]) -> None:
    hand = Hand()
    awake = Awake(hand)
    for moment in accumulate(pauses):
        hand.at = moment
        awake.look()
    assert awake.time() == pytest.approx(hand.at)
    assert awake.since_freeze() == float("inf")


@given(st.floats(LONGEST_PAUSE_S * 1.01, 1e6), st.floats(0, LONGEST_PAUSE_S))
def test_a_freeze_counts_as_the_longest_pause_and_is_remembered(frozen: float, later: float) -> None:
    hand = Hand()
    awake = Awake(hand)
    hand.at = frozen
    assert awake.time() == LONGEST_PAUSE_S
    assert awake.since_freeze() == 0
    hand.at = frozen + later
    assert awake.since_freeze() == pytest.approx(later, abs=1e-6)


def test_without_a_longest_pause_it_is_the_clock_itself() -> None:
    hand = Hand()
    awake = Awake(hand, float("inf"))
    hand.at = 1e6
    assert (awake.time(), awake.since_freeze()) == (1e6, float("inf"))


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux stops its other clocks in a sleep")
def test_the_sleep_of_a_machine_is_a_freeze_too() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= always() <= time.clock_gettime(time.CLOCK_BOOTTIME)
