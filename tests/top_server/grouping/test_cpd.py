from __future__ import annotations

import numpy as np
import pytest

from top_server.grouping.cpd import cpd, cpd_median, cpd_pairs


@pytest.mark.parametrize(
    ("p", "q", "reading", "expected"),
    [
        ((1, 0), (0, 1), "A", 1.264241),
        ((1, 0), (0, 1), "B", 1.264241),
        ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), "A", 0.113782),
        ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), "B", 0.172138),
    ],
)
def test_the_readings_of_the_distance(
    p: tuple[float, ...], q: tuple[float, ...], reading: str, expected: float
) -> None:
    assert cpd(np.array(p), np.array(q), reading) == pytest.approx(expected, abs=5e-7)


def test_permuting_classes_is_a_difference() -> None:
    """The reading that takes the entries as samples would give 0 here."""
    assert cpd(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])) > 0.1


def test_counts_are_normalised_so_quantity_does_not_matter() -> None:
    assert cpd(np.array([10, 30]), np.array([100, 300])) == 0
    assert cpd(np.array([10, 30]), np.array([3, 1])) == cpd(np.array([0.25, 0.75]), np.array([0.75, 0.25]))


def test_readings_order_pairs_alike() -> None:
    histograms = np.random.default_rng(0).integers(0, 50, (12, 6))
    a, b = (np.argsort(cpd_pairs(histograms, reading, sigma=0.7)) for reading in ("A", "B"))
    assert np.array_equal(a, b)


def test_pairs_are_all_pairs_in_order() -> None:
    histograms = np.random.default_rng(1).integers(1, 50, (5, 4))
    expected = [cpd(histograms[i], histograms[j]) for i in range(5) for j in range(i + 1, 5)]
    assert cpd_pairs(histograms).tolist() == expected
    assert cpd_median(histograms) == np.median(expected)


def test_one_group_differs_from_none() -> None:
    assert cpd_median(np.array([[3, 1]])) == 0.0


def test_an_empty_histogram_is_a_distribution_of_zeros() -> None:
    assert cpd(np.array([0, 0]), np.array([1, 0])) == pytest.approx(0.632121, abs=5e-7)


def test_an_unknown_reading_is_refused() -> None:
    with pytest.raises(ValueError, match="reading 'C'"):
        cpd(np.array([1, 0]), np.array([0, 1]), "C")
