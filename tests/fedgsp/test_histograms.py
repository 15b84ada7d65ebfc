"""Histograms of values that are no classes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import histogram, quantile_edges

VALUES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


def test_a_value_on_an_edge_is_in_the_bin_above() -> None:
    assert histogram(np.array([[-9.0, 1.0], [1.5, 2.0]]), [1, 2]).tolist() == [1, 2, 1]
    assert histogram([], [0.5]).tolist() == [0, 0]


@given(values=VALUES, edges=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9, unique=True))
def test_each_value_is_in_the_one_bin_whose_edges_enclose_it(values: list[float], edges: list[float]) -> None:
    inside = [-np.inf, *sorted(edges), np.inf]
    expected = [sum(low <= value < high for value in values) for low, high in itertools.pairwise(inside)]
    assert histogram(values, sorted(edges)).tolist() == expected


@given(values=VALUES, bins=st.integers(2, 8))
def test_quantiles_divide_values_and_leave_no_bin_empty_at_either_end(values: list[float], bins: int) -> None:
    if min(values) == max(values):
        with pytest.raises(ValueError, match="all values are equal"):
            quantile_edges(values, bins)
        return
    edges = quantile_edges(values, bins)
    counts = histogram(values, edges)
    assert 2 <= len(counts) <= bins
    assert counts[0] > 0
    assert counts[-1] > 0


def test_a_value_that_is_more_frequent_than_a_bin_is_large_leaves_two_bins() -> None:
    assert quantile_edges([0, -1, -1], 2) == [0]
    assert quantile_edges([5] * 99 + [7, 6], 4) == [6]
    assert histogram([5] * 99 + [7, 6], [6]).tolist() == [99, 2]


def test_quantiles_of_different_values_make_bins_of_equal_size() -> None:
    values = np.random.default_rng(0).permutation(80)
    assert histogram(values, quantile_edges(values, 4)).tolist() == [20, 20, 20, 20]


@pytest.mark.parametrize("edges", [[], [1.0, 1.0], [2.0, 1.0], [float("nan")], [[1.0]]])
def test_edges_that_make_no_bins_are_refused(edges: list[float]) -> None:
    with pytest.raises(ValueError, match="edges have to be finite and to ascend"):
        histogram([1.0], edges)


def test_values_in_no_bin_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        histogram([float("nan")], [1.0])
    with pytest.raises(ValueError, match="at least 2 bins"):
        quantile_edges([1.0, 2.0], 1)
