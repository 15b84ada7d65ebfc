"""Where models travel coded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.transfers.link_choice import AUTO, CODED, EXPECTED_SHARE, MARGIN, RAW, Seen, is_coded, may_be_coded

rates = st.floats(1e3, 1e10)
sizes = st.integers(1, 10**10)
NONE = Seen()


@given(rates, rates, sizes, st.floats(0, 1))
def test_nothing_is_coded_or_kept_where_it_is_not_wanted(
    rate: float, speed: float, size: int, round_trip_s: float
) -> None:
    assert not may_be_coded(RAW, False, rate, speed, NONE)
    assert not is_coded(RAW, False, size, 0, rate, round_trip_s, speed, NONE)
    for known in (rate, 0.0):
        assert not may_be_coded(AUTO, True, known, speed, NONE)
        assert not is_coded(AUTO, True, size, 0, known, round_trip_s, speed, NONE)
    assert may_be_coded(CODED, True, rate, speed, NONE)
    assert is_coded(CODED, True, size, 1 << 40, rate, round_trip_s, speed, NONE)


@given(rates, rates, sizes, st.floats(0, 1))
def test_a_known_link_carries_code_only_where_that_is_faster(
    rate: float, speed: float, size: int, round_trip_s: float
) -> None:
    if is_coded(AUTO, False, size, 1 << 16, rate, round_trip_s, speed, NONE):
        assert MARGIN * rate < speed
        assert round_trip_s + MARGIN * size / speed < size / rate
        assert may_be_coded(AUTO, False, rate, speed, NONE)


@given(rates, st.floats(0, 1))
def test_a_large_model_on_a_slow_link_is_coded(rate: float, round_trip_s: float) -> None:
    size = math.ceil(2 * round_trip_s * rate / (1 - EXPECTED_SHARE)) + 1
    assert is_coded(AUTO, False, size, 1 << 16, rate, round_trip_s, 2 * MARGIN * rate, NONE)
    assert not is_coded(AUTO, False, size, 1 << 16, rate, round_trip_s, MARGIN * rate, NONE)


@pytest.mark.parametrize(("size", "expected"), [(1000, False), (1 << 16, False), (1 << 20, True)])
def test_a_link_of_unknown_speed_is_offered_code_for_models_beyond_its_window(size: int, expected: bool) -> None:
    assert is_coded(AUTO, False, size, 1 << 16, 0.0, 0.0, 1e8, NONE) is expected
    assert may_be_coded(AUTO, False, 0.0, 1e8, NONE)


LARGE = 26_000_000


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen(), True),
        (Seen(coded=60e6, waited=True), True),  # the link is the limit: raw bytes would take longer
        (Seen(coded=60e6), False),  # the coding is the limit: are raw bytes faster?
        (Seen(coded=60e6, plain=110e6), False),
        (Seen(coded=60e6, plain=50e6), True),
        (Seen(plain=110e6), True),  # coded was not tried yet
    ],
)
def test_once_a_coded_model_did_not_wait_for_the_link_the_faster_way_is_found(seen: Seen, expected: bool) -> None:
    assert is_coded(AUTO, False, LARGE, 1 << 16, 0.0, 0.02, 1e8, seen) is expected
    assert is_coded(CODED, False, LARGE, 1 << 16, 0.0, 0.02, 1e8, seen)
    assert not is_coded(RAW, False, LARGE, 1 << 16, 0.0, 0.02, 1e8, seen)


def test_nothing_is_kept_as_a_base_where_raw_bytes_are_faster() -> None:
    assert not may_be_coded(AUTO, False, 0.0, 1e8, Seen(coded=60e6, plain=110e6))
    assert may_be_coded(AUTO, False, 0.0, 1e8, Seen(coded=60e6, plain=50e6))
