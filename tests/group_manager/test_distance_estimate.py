"""Distances from accuracies: which judgements count, how sure they are, and what may be chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.discriminators import ESTIMATES
from fedgsp.messages import Discriminated
from group_manager.discrimination import Networks, networks
from group_manager.distance_estimate import distances, shrunk
from tests.support.scripted_networks import plan

NOBODY: set[int] = set()
#: Right answers of both clients on 20 samples, in eight judgements; the third is the best.
TOLD = [(10, 10), (12, 11), (16, 14), (12, 13), (15, 14), (13, 13), (11, 12), (14, 12)]


def learnt(estimate: str, told: list[tuple[int, int]], patience: int = 10, samples: int = 20) -> Networks:
    """The networks of one pair after these judgements."""
    found = networks((0, 1), plan(estimate=estimate, patience=patience))
    for first, second in told:
        if found.left:
            answers = {0: Discriminated(None, (first,), samples), 1: Discriminated(None, (second,), samples)}
            found.advance(answers, {}, NOBODY)
    return found


def of_pair(
    estimate: str, *folds: list[tuple[int, int]], patience: int = 10, training: int = 20
) -> tuple[float, float]:
    found, errors = distances([learnt(estimate, told, patience) for told in folds], training, estimate)
    assert np.array_equal(found, found.T)
    assert np.array_equal(errors, errors.T)
    return float(found[0, 1]), float(errors[0, 1])


def error(first: float, second: float, count: int) -> float:
    """Of the sum of two shares of so many samples each, after a right and a wrong answer more."""
    shares = [(share * count + 1) / (count + 2) for share in (first, second)]
    return math.sqrt(sum(share * (1 - share) / count for share in shares))


def test_the_largest_judgement_is_the_best_of_all_and_the_last_is_the_last() -> None:
    assert of_pair("largest", TOLD) == pytest.approx((0.5, error(0.8, 0.7, 20)))
    assert of_pair("last", TOLD) == pytest.approx((0.3, error(0.7, 0.6, 20)))


def test_cross_fitting_takes_the_mean_of_both_halves_after_their_best_judgements() -> None:
    # Patience 5: judgements 4 to 8 follow the best. Sums of right answers: 65 and 64 of 100.
    straight = of_pair("cross-fitted", TOLD, TOLD, patience=5)
    plain, uncertain = 0.65 + 0.64 - 1, error(0.65, 0.64, 40)
    assert straight == pytest.approx((plain - uncertain**2 / plain, uncertain))
    other = [(20, 20)] + [(20, 19)] * 5
    first, second = (0.65 + 1) / 2, (0.64 + 0.95) / 2
    uncertain = error(first, second, 40)
    plain = first + second - 1
    assert of_pair("cross-fitted", TOLD, other, patience=5) == pytest.approx((plain - uncertain**2 / plain, uncertain))


def test_samples_that_both_halves_judge_count_once_in_the_error() -> None:
    # 20 judged by each half, 5 that train: the client has 25 samples.
    assert of_pair("cross-fitted", TOLD, TOLD, patience=5, training=5)[1] == pytest.approx(error(0.65, 0.64, 25))


def test_a_pair_that_one_half_does_not_know_is_not_known() -> None:
    assert of_pair("cross-fitted", TOLD, []) == (1.0, 0.0)


def test_perfect_answers_on_few_samples_are_not_certain() -> None:
    assert of_pair("largest", [(20, 20)]) == pytest.approx((1.0, math.sqrt(2 * (21 / 22) * (1 / 22) / 20)))


@pytest.mark.parametrize(
    ("found", "error", "left"),
    [(0.25, 0.15, 0.16), (0.5, 0.1, 0.48), (0.1, 0.1, 0), (0.09, 0.1, 0), (-0.3, 0.1, 0), (0, 0, 0), (0.7, 0, 0.7)],
)
def test_what_may_be_chance_is_taken_off(found: float, error: float, left: float) -> None:
    assert shrunk(np.array([found]), np.array([error])) == pytest.approx(np.array([left]))


@settings(deadline=None)
@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_shrinking_keeps_the_order_and_never_adds(found: float, less: float, error: float) -> None:
    smaller, larger = shrunk(np.array([found - less, found]), np.array([error, error]))
    assert 0 <= smaller <= larger <= max(0.0, found)


def test_equal_clients_come_out_near_0_however_few_samples_they_have() -> None:
    """Thirty judgements of a network that guesses, 200 pairs: the largest is far off, the new estimate hardly."""
    rng = np.random.default_rng(0)
    means = {}
    for estimate, rule in ESTIMATES.items():
        folds = [[list(map(tuple, rng.binomial(7, 0.5, (30, 2)))) for _ in range(200)] for _ in range(rule.folds)]
        found = [
            distances([learnt(estimate, told, samples=7) for told in pair], 7, estimate)[0][0, 1]
            for pair in zip(*folds, strict=True)
        ]
        means[estimate] = np.mean(found)
    assert means["largest"] > 0.3
    assert abs(means["last"]) < 0.06
    assert means["cross-fitted"] < 0.02


def test_every_estimate_reads_judgements_that_networks_keep() -> None:
    for estimate, told in itertools.product(ESTIMATES, (TOLD, [(20, 0)])):
        found, errors = distances([learnt(estimate, told)] * ESTIMATES[estimate].folds, 20, estimate)
        assert np.isfinite(found).all()
        assert (errors >= 0).all()
