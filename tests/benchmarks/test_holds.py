"""When a claim holds: hand-computed cases, and what is so for all values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.results.holds import FAILS, HOLDS, OPEN, interval, verdict


def above(*differences: float) -> str:
    """The verdict on these differences, of seeds 0, 1, ..."""
    return verdict(
        {seed: 10 + one for seed, one in enumerate(differences)}, dict.fromkeys(range(len(differences)), 10)
    )


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((), OPEN),
        ((5.0,), OPEN),  # one seed supports no order
        ((1.0, 9.0), HOLDS),  # both above, though the interval is -45.8 to 55.8
        ((-1.0, -9.0), FAILS),
        ((1.0, -1.0), OPEN),
        ((0.0, 0.0, 0.0), OPEN),
        ((0.0, 1.0), OPEN),  # level in one seed; the interval is -5.9 to 6.9
        # one seed below 0, and an interval of 0.18 to 1.50: mean 0.84, deviation 0.532, t(4) = 2.776, half 0.660
        ((-0.1, 1.0, 1.2, 1.0, 1.1), HOLDS),
        ((0.1, -1.0, -1.2, -1.0, -1.1), FAILS),
        # mean 0.5, deviation 0.866, t(2) = 4.303, half 2.151
        ((0.0, 0.0, 1.5), OPEN),
    ],
)
def test_cases_computed_by_hand(differences: tuple[float, ...], said: str) -> None:
    assert above(*differences) == said


def test_the_interval_is_students() -> None:
    # mean 2, deviation 1, t(2) = 4.302653
    half = 4.302653 / math.sqrt(3)
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2 - half, 2 + half))


def test_only_seeds_of_both_count() -> None:
    assert verdict({0: 1.0, 1: 2.0, 2: -9.0}, {0: 0.0, 1: 0.0, 3: 9.0}) == HOLDS
    assert verdict({0: 1.0, 1: 2.0}, {1: 0.0, 2: 0.0}) == OPEN


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        verdict({0: value, 1: 0.0}, {0: 0.0, 1: 0.0})


VALUES = st.dictionaries(st.integers(0, 9), st.integers(-50, 50).map(lambda n: n / 4), max_size=8)


@given(VALUES, VALUES)
def test_the_opposite_claim_has_the_opposite_verdict(ours: dict[int, float], theirs: dict[int, float]) -> None:
    opposite = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}
    assert verdict(theirs, ours) == opposite[verdict(ours, theirs)]


@given(VALUES, VALUES, st.integers(-8, 8))
def test_a_shift_of_both_changes_nothing(ours: dict[int, float], theirs: dict[int, float], shift: int) -> None:
    moved = [{seed: value + shift for seed, value in one.items()} for one in (ours, theirs)]
    assert verdict(*moved) == verdict(ours, theirs)


@given(VALUES, VALUES)
def test_what_holds_is_true_of_the_mean(ours: dict[int, float], theirs: dict[int, float]) -> None:
    differences = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    if verdict(ours, theirs) == HOLDS:
        assert len(differences) > 1
        assert sum(differences) > 0
