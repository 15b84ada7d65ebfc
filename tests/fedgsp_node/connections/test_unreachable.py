"""How long an address that could not be reached is tried last."""

from __future__ import annotations

import pytest

from fedgsp_node.connections import unreachable
from fedgsp_node.connections.unreachable import FIRST_S, LONGEST_S, Unreachable
from tests.support.clock import StoppedClock


def avoided_s(clock: StoppedClock, found: Unreachable, address: str) -> float:
    """For how long the address is tried last, in whole seconds."""
    begin = clock.now
    while address in found:
        clock.now += 1
    return clock.now - begin


def test_an_address_is_avoided_for_longer_each_time_and_only_briefly_after_it_was_reached() -> None:
    clock = StoppedClock()
    found = Unreachable(clock)
    lengths = []
    for _ in range(7):
        found.failed("h:1")
        lengths.append(avoided_s(clock, found, "h:1"))
    assert lengths == [FIRST_S, 20, 40, 80, 160, LONGEST_S, LONGEST_S]
    assert "h:2" not in found
    found.answered("h:1")
    found.failed("h:1")
    assert avoided_s(clock, found, "h:1") == FIRST_S


def test_attempts_that_fail_together_count_once() -> None:
    clock = StoppedClock()
    found = Unreachable(clock)
    for _ in range(5):
        found.failed("h:1")
    assert avoided_s(clock, found, "h:1") == FIRST_S
    found.answered("never failed")


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreachable, "MOST_ADDRESSES", 2)
    found = Unreachable(StoppedClock())
    for port in range(3):
        found.failed(f"h:{port}")
    assert [f"h:{port}" in found for port in range(3)] == [False, True, True]
