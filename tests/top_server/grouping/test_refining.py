from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from top_server.grouping.refining import dealt, difference


def counts_of(clients: int, seed: int, classes: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.poisson(30 * rng.dirichlet(np.full(classes, 0.4), clients))


def deal(clusters: np.ndarray, counts: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
    held = np.zeros((clusters.shape[1], counts.shape[1]), np.int64) if held is None else held
    return dealt(clusters, counts, held, np.random.default_rng(0))


def z_of(members: np.ndarray, counts: np.ndarray) -> int:
    return difference(counts[members].sum(axis=0))


def test_the_difference_adds_up_the_squared_distances_of_all_pairs() -> None:
    sums = counts_of(7, 0)
    assert difference(sums) == sum(int(((a - b) ** 2).sum()) for a, b in combinations(sums, 2)) > 0
    assert difference(np.ones((5, 3), np.int64)) == 0


@given(seed=st.integers(0, 2**32), members=st.integers(1, 6), groups=st.integers(2, 5))
@settings(deadline=None, max_examples=60)
def test_no_other_deal_of_one_cluster_makes_groups_more_alike(seed: int, members: int, groups: int) -> None:
    counts = counts_of(members * groups, seed)
    clusters = np.random.default_rng(seed).permutation(members * groups).reshape(members, groups)
    found = deal(clusters, counts)
    assert [sorted(cluster) for cluster in found.tolist()] == [sorted(cluster) for cluster in clusters.tolist()]
    least = z_of(found, counts)
    for cluster, order in product(range(members), permutations(range(groups))):
        other = found.copy()
        other[cluster] = found[cluster, list(order)]
        assert z_of(other, counts) >= least


def test_the_deal_is_near_the_best_of_all_deals() -> None:
    """Of 3 clusters of 4 there are 24 * 24 deals that differ."""
    ratios, random = [], []
    for seed in range(20):
        counts = counts_of(12, seed)
        clusters = np.arange(12).reshape(3, 4)
        every = [
            z_of(np.stack([clusters[0], clusters[1, list(one)], clusters[2, list(two)]]), counts)
            for one, two in product(permutations(range(4)), repeat=2)
        ]
        ratios.append(z_of(deal(clusters, counts), counts) / min(every))
        random.append(np.mean(every) / min(every))
    assert min(ratios) == 1
    assert np.mean(ratios) < 1.03 < 2.5 < np.mean(random)


def test_the_deal_levels_out_what_groups_hold_already() -> None:
    counts = np.repeat([(9, 0), (0, 9)], 2, axis=0)
    found = deal(np.arange(4).reshape(1, 4), counts, held=np.array([(9, 0), (0, 9), (0, 9), (9, 0)]))
    assert sorted(found[0, [1, 2]].tolist()) == [0, 1]


def test_more_groups_than_one_assignment_takes_are_dealt_in_parts() -> None:
    counts = counts_of(1200, 0)
    clusters = np.arange(1200).reshape(4, 300)
    found = deal(clusters, counts)
    assert [sorted(cluster) for cluster in found.tolist()] == clusters.tolist()
    assert z_of(found, counts) < 0.3 * z_of(clusters, counts)
