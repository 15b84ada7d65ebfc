"""Who is measured with whom: every pair of those that arrived once, on as many samples as both can spare."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from top_server.profiles.measurements import Measurement, measurements


@pytest.mark.parametrize(
    ("sizes", "arrived", "found"),
    [
        ({0: 10, 1: 12, 2: 11}, {0, 1, 2}, [Measurement(5, (0, 1, 2))]),
        ({0: 10, 1: 12, 7: 40, 8: 60}, {7, 8}, [Measurement(5, (0, 1, 7, 8), (7, 8))]),
        ({0: 10, 1: 12, 7: 6}, {7}, [Measurement(3, (0, 1, 7), (7,))]),
        ({0: 10, 1: 12, 3: 6, 7: 40}, {7}, [Measurement(5, (0, 1, 7), (7,)), Measurement(3, (3, 7), (3,))]),
        ({0: 10, 3: 6}, (), []),
    ],
    ids=["the first", "large", "a small one", "a small one is there", "nobody"],
)
def test_who_can_spare_enough_is_measured_together_and_the_others_each_by_itself(
    sizes: dict[int, int], arrived: set[int], found: list[Measurement]
) -> None:
    assert measurements(sizes, arrived, 5) == found


@given(st.lists(st.tuples(st.integers(2, 20), st.booleans()), max_size=8), st.integers(1, 8))
def test_every_pair_of_who_arrived_is_measured_once_on_what_both_can_spare(
    clients: list[tuple[int, bool]], most: int
) -> None:
    sizes = {client: size for client, (size, _) in enumerate(clients)}
    arrived = {client for client, (_, new) in enumerate(clients) if new}
    found = measurements(sizes, arrived, most)
    assert all(one.clients == tuple(sorted(set(one.clients))) for one in found)
    told = [(pair, one.samples) for one in found for pair in itertools.combinations(one.clients, 2) if one.tells(pair)]
    wanted = [pair for pair in itertools.combinations(sizes, 2) if arrived.intersection(pair)]
    assert Counter(told) == Counter((pair, min(most, *(sizes[client] // 2 for client in pair))) for pair in wanted)
