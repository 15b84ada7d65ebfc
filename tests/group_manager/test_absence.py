"""How long a group waits for a node whose connection has ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from group_manager.absence import Absence

SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS)
def test_a_node_is_waited_for_until_it_counts_as_gone(seconds: float, return_s: float) -> None:
    absence = Absence(seconds, return_s)
    assert absence.is_gone == (absence.wait_s(others_work=False) == 0)
    assert seconds + absence.wait_s(others_work=False) <= max(seconds, return_s) * 1.000001


@given(SECONDS, SECONDS)
def test_while_others_work_a_node_is_waited_for_however_long_it_is_away(seconds: float, return_s: float) -> None:
    assert Absence(seconds, return_s).wait_s(others_work=True) > 0
