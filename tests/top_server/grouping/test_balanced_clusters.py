from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedgsp.errors import ConfigError
from top_server.grouping.balanced_clusters import balanced_clusters, nearest_balanced

SIX = np.array([(9, 1), (8, 2), (10, 0), (1, 9), (2, 8), (0, 10)])


def random_rows(seed: int, clients: int, classes: int, most: int = 60) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, most, (clients, classes))


def objective(rows: NDArray[np.int64], centroids: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    return float(0.5 * ((rows - centroids[labels]) ** 2).sum())


def test_six_clients_of_two_kinds_part_from_a_bad_start() -> None:
    clusters = balanced_clusters(SIX, starts=np.array([0, 1]), iterations=10)
    assert {frozenset(np.flatnonzero(clusters.labels == label).tolist()) for label in (0, 1)} == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5}),
    }
    assert clusters.objectives == (151, 4)


def test_the_squared_distance_is_minimised_not_the_distance() -> None:
    rows = np.array([(8, 6), (7, 3), (8, 1), (5, 7)])
    centroids = np.array([(8, 5), (3, 3)])
    labels = nearest_balanced(rows, centroids, size=2)
    assert labels.tolist() == [0, 1, 0, 1]
    assert objective(rows, centroids, labels) == 26.5  # the unsquared distance would give 27.5


@given(
    seed=st.integers(0, 2**32), size=st.integers(1, 6), clusters=st.integers(1, 6), classes=st.integers(1, 8),
    most=st.sampled_from([2, 5, 60, 10_000]),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_the_flow_is_as_good_as_the_hungarian_method(
    seed: int, size: int, clusters: int, classes: int, most: int
) -> None:
    rows = random_rows(seed, size * clusters, classes, most)
    sums = rows[np.random.default_rng(seed).permutation(len(rows))].reshape(clusters, size, classes).sum(axis=1)
    centroids = sums / size
    labels = nearest_balanced(rows, sums, size)

    distances = 0.5 * ((rows[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2)
    columns = np.repeat(distances, size, axis=1)
    best = columns[linear_sum_assignment(columns)].sum()
    assert np.bincount(labels, minlength=clusters).tolist() == [size] * clusters
    assert objective(rows, centroids, labels) == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 8), clusters=st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_clusters_have_one_size_and_the_objective_never_rises(seed: int, size: int, clusters: int) -> None:
    rows = random_rows(seed, size * clusters, 5)
    starts = np.random.default_rng(seed).choice(len(rows), clusters, replace=False)
    result = balanced_clusters(rows, starts, iterations=30)
    assert np.bincount(result.labels, minlength=clusters).tolist() == [size] * clusters
    assert all(b <= a * (1 + 1e-12) for a, b in zip(result.objectives, result.objectives[1:], strict=False))


def test_iterations_bound_the_work() -> None:
    rows = random_rows(3, 60, 8)
    starts = np.arange(6)
    assert len(balanced_clusters(rows, starts, iterations=1).objectives) == 1
    assert 2 < len(balanced_clusters(rows, starts, iterations=100).objectives) < 100


def test_equal_clients_are_split_in_equal_parts() -> None:
    labels = balanced_clusters(np.ones((12, 3), np.int64), np.arange(4), iterations=10).labels
    assert np.bincount(labels).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_costs_beyond_a_double_stay_exact(order: list[int]) -> None:
    """The better assignment wins by 1 in 2**57, which doubles cannot tell apart."""
    centroids = np.array([(2**28, 0), (2**28, 1)])
    assert nearest_balanced(centroids[order], centroids, size=1).tolist() == order


def test_counts_beyond_64_bits_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="normalise=true"):
        nearest_balanced(np.full((4, 2), 2**31), np.full((2, 2), 2**32), size=2)


@pytest.mark.parametrize("clusters", [1, 2, 3, 4, 6, 12])
def test_counts_beyond_64_bits_are_divided_by_prices(clusters: int) -> None:
    """One client may say that it has so many samples: that must not end the run of all others."""
    rows = random_rows(3, 12, 10, 60)
    rows[5] = (1 << 48) // 10
    labels = balanced_clusters(rows, np.arange(clusters), iterations=10).labels
    assert np.bincount(labels).tolist() == [12 // clusters] * clusters


def test_clusters_of_unequal_size_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows do not make 2 clusters"):
        balanced_clusters(np.ones((5, 2), np.int64), np.arange(2), iterations=10)
