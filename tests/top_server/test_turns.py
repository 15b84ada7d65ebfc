"""How long clients are expected to take, by a record of their turns."""

from __future__ import annotations

import json
from statistics import median_low
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from top_server.turns import WINDOW, Turns


def hop(number: int, client: int, turn: float, samples: int = 10) -> dict[str, Any]:
    return {"event": "hop_finished", "round": number, "client": client, "turn": turn, "samples": samples}


def turns_of(*lines: dict[str, Any]) -> Turns:
    turns = Turns()
    for line in lines:
        turns.note(line)
    return turns


def test_before_any_turn_clients_take_as_long_as_their_samples_cost() -> None:
    expected = Turns().expected(1, {3: 10, 5: 40}, flop=567_000_000)
    assert expected.seconds == {3: pytest.approx(0.01), 5: pytest.approx(0.04)}
    assert expected.by_samples == (3, 5)
    unknown = Turns().expected(1, {3: 10, 5: 40}, flop=0).seconds
    assert unknown[5] == 4 * unknown[3] > 0


def test_a_client_takes_as_long_per_sample_as_it_took() -> None:
    turns = turns_of(hop(1, 3, 20.0), hop(1, 5, 1.0))
    assert turns.expected(2, {3: 10, 5: 10}, 0).seconds == {3: 20.0, 5: 1.0}
    assert turns.expected(2, {3: 20, 5: 10}, 0).seconds == {3: 40.0, 5: 1.0}


def test_a_newcomer_takes_as_long_per_sample_as_is_typical_of_the_others() -> None:
    turns = turns_of(hop(1, 0, 10.0), hop(1, 1, 20.0), hop(1, 2, 400.0))
    expected = turns.expected(2, {0: 10, 1: 10, 2: 10, 7: 30}, flop=10**12)
    assert expected.seconds[7] == 60.0
    assert expected.by_samples == (7,)


def test_the_pause_of_a_frozen_site_counts_in_no_later_round_than_the_next() -> None:
    turns = turns_of(hop(1, 3, 2.0), hop(2, 3, 90.0))
    assert turns.expected(3, {3: 10}, 0).seconds == {3: 2.0}
    first = turns_of(hop(1, 3, 90.0))
    assert first.expected(2, {3: 10}, 0).seconds == {3: 90.0}
    first.note(hop(2, 3, 2.0))
    assert first.expected(3, {3: 10}, 0).seconds == {3: 2.0}


def test_a_site_that_became_slower_is_slower_after_some_rounds() -> None:
    turns = turns_of(*(hop(number, 3, 1.0) for number in range(1, 8)), *(hop(n, 3, 20.0) for n in range(8, 11)))
    assert turns.expected(11, {3: 10}, 0).seconds == {3: 20.0}


def test_turns_of_the_round_itself_do_not_count() -> None:
    """A round that was interrupted, or is tried again, has the groups that it had."""
    turns = turns_of(hop(1, 3, 2.0), hop(2, 3, 9.0), hop(2, 3, 9.0))
    assert turns.expected(2, {3: 10}, 0) == turns_of(hop(1, 3, 2.0)).expected(2, {3: 10}, 0)


def test_other_lines_and_hops_without_a_turn_are_passed_over() -> None:
    without = {key: value for key, value in hop(1, 3, 5.0).items() if key != "turn"}
    turns = turns_of({"event": "round_started", "round": 1}, without, {**without, "turn": None}, {"time": "now"})
    assert turns.expected(2, {3: 10}, 0).by_samples == (3,)


@pytest.mark.parametrize("damage", [{"turn": "slow"}, {"round": "first"}, {"samples": None}, {"client": []}])
def test_a_damaged_line_is_an_error(damage: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Turns().note({**hop(1, 3, 5.0), **damage})


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.floats(0.001, 1e4), st.integers(0, 50)), max_size=60)
)
def test_the_same_record_gives_the_same_times_whether_noted_or_read_again(
    told: list[tuple[int, int, float, int]],
) -> None:
    """Against the rule written plainly; rounds come in order, and the last one may have been played twice."""
    lines = [hop(*one) for one in sorted(told, key=lambda one: one[0])]
    last = max((line["round"] for line in lines), default=1)
    samples = {0: 10, 1: 25, 2: 1}
    for number in (last, last + 1):
        expected = turns_of(*lines).expected(number, samples, 0)
        again = turns_of(*(json.loads(json.dumps(line)) for line in lines)).expected(number, samples, 0)
        assert again == expected
        for client, count in samples.items():
            rates = [
                line["turn"] / max(1, line["samples"])
                for line in lines
                if line["client"] == client and line["round"] < number
            ]
            assert (client in expected.by_samples) is not bool(rates)
            if rates:
                assert expected.seconds[client] == median_low(rates[-WINDOW:]) * count
