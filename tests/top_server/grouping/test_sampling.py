from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from top_server.grouping.round_size import sample, sample_size


@pytest.mark.parametrize(
    ("total", "rate", "size"),
    [
        (10, 0.3, 3),
        (10, 0.1, 1),
        (130, 0.3, 39),
        (368, 0.3, 110),  # FedAvg with the sampling rate of the paper
        (5, 0.1, 1),  # 0.5 rounds up
        (5, 0.3, 2),  # 1.5 rounds up
        (5, 0.5, 3),  # 2.5 rounds up, not to even
        (50, 0.29, 15),  # 0.29 * 50 is 14.499999999999998 in floating point
        (3, 0.01, 1),  # at least one
        (7, 1.0, 7),
        (2, 1 / 3, 1),
    ],
)
def test_a_share_is_rounded_half_up_and_at_least_one(total: int, rate: float, size: int) -> None:
    assert sample_size(total, rate) == size


@given(total=st.integers(1, 60), rate=st.floats(0.001, 1), seed=st.integers(0, 2**32))
def test_a_sample_has_no_repeats_and_keeps_the_order(total: int, rate: float, seed: int) -> None:
    items = [f"group {i}" for i in range(total)]
    drawn = sample(items, rate, np.random.default_rng(seed))
    assert len(set(drawn)) == len(drawn) == sample_size(total, rate)
    assert list(drawn) == sorted(drawn, key=items.index)
    assert drawn == sample(items, rate, np.random.default_rng(seed))


def test_every_item_is_drawn_about_equally_often() -> None:
    rng = np.random.default_rng(7)
    drawn = np.bincount([item for _ in range(3000) for item in sample(range(10), 0.3, rng)], minlength=10)
    assert drawn.min() > 800  # 900 expected, deviation 25
    assert drawn.max() < 1000
