from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from top_server.grouping.balanced_clusters import MOST_EXACT_ARCS, balanced_clusters, nearest_balanced
from top_server.grouping.priced_clusters import TOLERANCE, Assignment, nearest_priced


def skewed(clients: int, seed: int, classes: int = 20) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return rng.poisson(100 * rng.dirichlet(np.full(classes, 0.5), clients))


def objective(rows: NDArray[np.int64], centroids: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    return float(0.5 * ((rows - centroids[labels]) ** 2).sum())


def priced(rows: NDArray[np.int64], sums: NDArray[np.int64], size: int) -> Assignment:
    return nearest_priced(rows, sums, size, size, np.zeros(len(sums)))


@given(
    seed=st.integers(0, 2**32), size=st.integers(1, 8), clusters=st.integers(1, 40), classes=st.integers(1, 8),
    most=st.sampled_from([2, 5, 60, 10_000]),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_no_exact_flow_is_further_below_than_the_bound_says(
    seed: int, size: int, clusters: int, classes: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, most, (size * clusters, classes))
    sums = rng.permutation(rows).reshape(clusters, size, classes).sum(axis=1)
    found = priced(rows, sums, size)
    assert np.bincount(found.labels, minlength=clusters).tolist() == [size] * clusters
    ours = objective(rows, sums / size, found.labels)
    least = objective(rows, sums / size, nearest_balanced(rows, sums, size))
    assert least * (1 - 1e-9) <= ours
    assert ours - least <= found.excess * ours + 0.01 * len(rows)


@pytest.mark.parametrize("size", [2, 20, 60])
def test_skewed_clients_are_within_the_tolerance_of_the_exact_flow(size: int) -> None:
    rows = skewed(1200, size)
    sums = np.random.default_rng(0).permutation(rows).reshape(-1, size, rows.shape[1]).sum(axis=1)
    found = priced(rows, sums, size)
    least = objective(rows, sums / size, nearest_balanced(rows, sums, size))
    assert found.excess <= TOLERANCE
    assert objective(rows, sums / size, found.labels) <= (1 + TOLERANCE) * least


@pytest.mark.parametrize("seed", range(3))
def test_ten_iterations_end_as_low_as_exact_ones(seed: int) -> None:
    rows = skewed(1040, seed)
    starts = np.random.default_rng(seed).choice(len(rows), 40, replace=False)
    ours, exact = (balanced_clusters(rows, starts, 10, exact).objectives for exact in (False, True))
    assert ours[0] <= (1 + TOLERANCE) * exact[0]
    assert ours[-1] <= 1.01 * exact[-1]
    assert all(b <= a * (1 + TOLERANCE) for a, b in pairwise(ours))


def test_clients_of_few_kinds_are_clustered_by_kind_though_many_clusters_tie() -> None:
    rows = 30 * np.eye(10, dtype=np.int64)[np.arange(1200) % 10]
    sums = 20 * rows[:60]
    labels = priced(rows, sums, 20).labels
    assert np.bincount(labels).tolist() == [20] * 60
    assert (labels % 10 == np.arange(1200) % 10).all()


def test_equal_clients_are_split_in_equal_parts() -> None:
    labels = balanced_clusters(np.ones((400, 3), np.int64), np.arange(20), 10, exact=False).labels
    assert np.bincount(labels).tolist() == [20] * 20


def test_the_number_of_arcs_decides_whether_steps_are_exact() -> None:
    rows = skewed(1000, 0, classes=4)
    for clusters, exact in ((MOST_EXACT_ARCS // len(rows), True), (125, False)):
        ours, same, other = (
            balanced_clusters(rows, np.arange(clusters), 2, kind).objectives for kind in (None, exact, not exact)
        )
        assert ours == same != other


@pytest.mark.parametrize("clusters", [1, 2, 20, 200])
def test_counts_beyond_64_bit_costs_can_be_clustered_by_prices(clusters: int) -> None:
    rows = skewed(200, 0) * 2**34
    labels = balanced_clusters(rows, np.arange(clusters), 3, exact=False).labels
    assert np.bincount(labels).tolist() == [200 // clusters] * clusters
