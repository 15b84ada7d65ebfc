from __future__ import annotations

import numpy as np
import pytest

from top_server.grouping.cpd import cpd_median, cpd_pairs


def cpd(p: tuple[float, ...], q: tuple[float, ...]) -> float:
    return float(cpd_pairs(np.array([p, q]))[0])


@pytest.mark.parametrize(
    ("p", "q", "expected"), [((1, 0), (0, 1), 1.264241), ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), 0.113782)]
)
def test_the_distance_of_two_distributions(p: tuple[float, ...], q: tuple[float, ...], expected: float) -> None:
    assert cpd(p, q) == pytest.approx(expected, abs=5e-7)


def test_permuting_classes_is_a_difference() -> None:
    """The reading that takes the entries as samples would give 0 here."""
    assert cpd((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)) > 0.1


def test_counts_are_normalised_so_quantity_does_not_matter() -> None:
    assert cpd((10, 30), (100, 300)) == 0
    assert cpd((10, 30), (3, 1)) == cpd((0.25, 0.75), (0.75, 0.25))


def test_pairs_are_all_pairs_in_order() -> None:
    histograms = np.random.default_rng(1).integers(1, 50, (5, 4))
    expected = [cpd(histograms[i], histograms[j]) for i in range(5) for j in range(i + 1, 5)]
    assert cpd_pairs(histograms).tolist() == expected
    assert cpd_median(histograms) == np.median(expected)


def test_one_group_differs_from_none() -> None:
    assert cpd_median(np.array([[3, 1]])) == 0.0


def test_an_empty_histogram_is_a_distribution_of_zeros() -> None:
    assert cpd((0, 0), (1, 0)) == pytest.approx(0.632121, abs=5e-7)
