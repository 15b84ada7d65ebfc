"""Schedules: factors by hand, the warm-up before each, and horizons."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.schedules import SCHEDULES, plan

NO_STEP: dict[str, str] = {}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("constant", NO_STEP, [1, 1, 1, 1]),
        ("constant", {"warmup": "3"}, [0.25, 0.5, 0.75, 1]),
        ("step", {"every": "2", "factor": "0.5"}, [1, 1, 0.5, 0.5, 0.25]),
        ("step", {"every": "2", "factor": "0.5", "warmup": "1"}, [0.5, 1, 1, 0.5, 0.5]),
        ("linear", {"horizon": "4"}, [1, 0.75, 0.5, 0.25]),
        ("linear", {"horizon": "4", "final": "0.2"}, [1, 0.8, 0.6, 0.4]),
        ("linear", {"horizon": "5", "warmup": "1"}, [0.5, 1, 0.75, 0.5, 0.25]),
        ("cosine", {"horizon": "4"}, [1, 0.85355339059, 0.5, 0.14644660940]),
        ("cosine", {"horizon": "2", "final": "0.5"}, [1, 0.75]),
    ],
)
def test_factors_by_hand(name: str, options: dict[str, str], expected: list[float]) -> None:
    found = [plan(name, options).factor(position, len(expected)) for position in range(len(expected))]
    assert found == pytest.approx(expected)


@given(
    name=st.sampled_from(list(SCHEDULES.built_in)),
    horizon=st.integers(1, 500),
    warmup=st.integers(0, 499),
    final=st.floats(0, 1),
)
def test_factors_grow_in_the_warm_up_and_fall_after_it(name: str, horizon: int, warmup: int, final: float) -> None:
    options = {"warmup": str(min(warmup, horizon - 1)), "horizon": str(horizon)}
    if name in ("linear", "cosine"):
        options["final"] = repr(final)
    found = [plan(name, options).factor(position, horizon) for position in range(horizon)]
    assert all(0 < factor <= 1 for factor in found)
    peak = min(warmup, horizon - 1)
    assert found[peak] == 1
    assert all(one < other for one, other in itertools.pairwise(found[: peak + 1]))
    assert all(one >= other for one, other in itertools.pairwise(found[peak:]))


@pytest.mark.parametrize("name", SCHEDULES.built_in)
def test_the_horizon_is_the_end_of_every_schedule(name: str) -> None:
    with pytest.raises(ConfigError, match=f"round or step 4 is beyond the horizon 3 of schedule {name}"):
        plan(name, {"horizon": "3"}).factor(3, 10)
    assert plan(name, {}).factor(2, 3) > 0  # that of the course, if none is given


def test_a_course_that_is_shorter_than_the_warm_up_stays_in_it() -> None:
    found = [plan("cosine", {"warmup": "9"}).factor(position, 3) for position in range(3)]
    assert found == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("cosine", {"horizon": "0"}, "option horizon is '0'"),
        ("linear", {"warmup": "5", "horizon": "5"}, "warmup is 5, and horizon 5"),
        ("step", {"factor": "0"}, "option factor is '0'"),
        ("step", {"factor": "2"}, "option factor is '2'"),
        ("linear", {"final": "-1"}, "option final is '-1'"),
        ("cosine", {"finale": "0"}, "schedule cosine has no option 'finale'"),
        ("sine", {}, "there is no schedule 'sine'"),
    ],
)
def test_a_wrong_option_is_told(name: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        plan(name, options)
