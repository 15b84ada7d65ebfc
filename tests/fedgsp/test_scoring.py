"""How the figures of several clients become one, and what rates a model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.scoring import MOST_FIGURE, SAMPLES, WAYS, Figure, Scoring, larger_is_better, metric_of, rated

ERRORS = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), min_size=1, max_size=6)


def combined(way: str, figures: list[Figure]) -> float | None:
    return Scoring(combine={"it": way}).combined("it", figures)


def means(clients: list[list[float]], of: str) -> list[Figure]:
    function = {"absolute": np.abs, "square": np.square}[of]
    return [Figure(float(function(errors).mean()), 0.0, len(errors)) for errors in clients]


@given(clients=ERRORS)
@settings(deadline=None)
def test_a_mean_by_samples_is_the_mean_over_all_samples_at_once(clients: list[list[float]]) -> None:
    everything = np.abs(np.concatenate(clients)).mean()
    assert combined(SAMPLES, means(clients, "absolute")) == pytest.approx(everything, rel=1e-9, abs=1e-9)


@given(clients=ERRORS)
@settings(deadline=None)
def test_a_root_mean_square_is_that_of_all_samples_at_once(clients: list[list[float]]) -> None:
    own = [Figure(math.sqrt(one.value), 0.0, one.samples) for one in means(clients, "square")]
    everything = math.sqrt(np.square(np.concatenate(clients)).mean())
    assert combined("root-mean-square", own) == pytest.approx(everything, rel=1e-9, abs=1e-9)


@given(clients=st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9), min_size=1))
@settings(deadline=None)
def test_a_ratio_is_the_f1_of_all_samples_at_once(clients: list[list[tuple[bool, bool]]]) -> None:
    def f1(pairs: list[tuple[bool, bool]]) -> tuple[float, float]:
        hits = sum(found and there for found, there in pairs)
        return 2.0 * hits, float(2 * hits + sum(found != there for found, there in pairs))

    numerator, denominator = f1([pair for pairs in clients for pair in pairs])
    found = combined("ratio", [Figure(*f1(pairs), len(pairs)) for pairs in clients])
    assert found == (pytest.approx(numerator / denominator) if denominator else None)


def test_the_other_ways_are_the_plain_mean_and_the_sum() -> None:
    figures = [Figure(0.5, 0.0, 1), Figure(1.0, 0.0, 99)]
    assert combined("clients", figures) == 0.75
    assert combined("sum", figures) == 1.5


@pytest.mark.parametrize("way", WAYS)
@given(bad=st.sampled_from([math.nan, math.inf, -math.inf]), place=st.integers(0, 2), part=st.integers(0, 1))
@settings(deadline=None)
def test_a_figure_that_is_no_finite_number_counts_for_nobody(way: str, bad: float, place: int, part: int) -> None:
    good = [Figure(1.0, 2.0, 3), Figure(3.0, 4.0, 5)]
    wrong = Figure(bad, 1.0, 7) if part == 0 else Figure(1.0, bad, 7)
    assert combined(way, [*good[:place], wrong, *good[place:]]) == combined(way, good)
    assert combined(way, [wrong]) is None


@pytest.mark.parametrize("way", WAYS)
def test_what_overflows_is_no_figure(way: str) -> None:
    figures = [Figure(1.7e308, 1e-300, 1 << 40)] * 3
    found = combined(way, figures)
    assert found is None or math.isfinite(found)
    assert combined(way, []) is combined(way, [Figure(1.0, 1.0, 0)]) is None


def test_a_ratio_of_one_client_is_its_quotient_and_no_number_without_a_denominator() -> None:
    scoring = Scoring(combine={"f1": "ratio"})
    assert scoring.own("f1", Figure(2.0, 4.0, 9)) == 0.5
    assert math.isnan(scoring.own("f1", Figure(0.0, 0.0, 9)))
    assert scoring.combined("f1", [Figure(0.0, 0.0, 9), Figure(2.0, 4.0, 9)]) == 0.5
    assert scoring.own("mae", Figure(2.0, 0.0, 9)) == 2.0
    assert math.isnan(scoring.own("f1", Figure(1.0, 1e-300, 9)))


def test_a_larger_score_is_better_whichever_way_its_figure_runs() -> None:
    assert (rated("f1", 0.5), rated("-mae", 2.0)) == (0.5, -2.0)
    assert rated("-mae", None) is rated("-loss", math.nan) is None
    assert (metric_of("-mae"), metric_of("f1")) == ("mae", "f1")
    assert (larger_is_better("-mae"), larger_is_better("f1")) == (False, True)


@pytest.mark.parametrize("large", [1.7e308, -1.7e308, 2 * MOST_FIGURE])
def test_a_number_that_would_overflow_elsewhere_counts_as_little_as_infinity(large: float) -> None:
    """One client could spoil with it each sum, and each drawing, of the figures of all."""
    own = [Figure(0.5, 0.0, 3), Figure(large, 0.0, 3)]
    assert combined(SAMPLES, own) == 0.5
    assert combined(SAMPLES, own[1:]) is None
    assert math.isnan(Scoring().own("it", own[1]))
    assert rated("-it", large) is None
