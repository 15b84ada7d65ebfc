from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from top_server.grouping.round_size import hand_out, shape_for

# M, L, clients per cluster and clients clustered in the paper, idle with exactly M groups; K = 368.
LEFTOVERS = [
    (10, 36, 10, 360, 8),
    (20, 18, 20, 360, 8),
    (30, 12, 30, 360, 8),
    (40, 9, 40, 360, 8),
    (50, 7, 52, 364, 18),
    (60, 6, 61, 366, 8),
    (70, 5, 73, 365, 18),
    (80, 4, 92, 368, 48),
    (90, 4, 92, 368, 8),
    (100, 3, 122, 366, 68),
    (110, 3, 122, 366, 38),
    (120, 3, 122, 366, 8),
    (130, 2, 184, 368, 108),
]


@pytest.mark.parametrize(("groups", "members", "paper_groups", "paper_clients", "idle"), LEFTOVERS)
def test_leftovers_of_368_clients(groups: int, members: int, paper_groups: int, paper_clients: int, idle: int) -> None:
    exact, paper = (shape_for(368, groups, mode) for mode in ("exact", "paper"))
    assert exact == (groups, members)
    assert 368 - groups * members == idle
    assert paper == (paper_groups, members)
    assert paper_groups * members == paper_clients
    assert shape_for(368, groups, "all") == exact


@pytest.mark.parametrize("mode", ["exact", "paper", "all"])
def test_more_groups_than_clients_are_groups_of_one(mode: str) -> None:
    assert shape_for(5, 9, mode) == shape_for(5, 5, mode) == (5, 1)


def test_the_rest_goes_to_different_groups() -> None:
    groups = [[0], [1], [2]]
    hand_out(groups, [3, 4], np.random.default_rng(0))
    assert sorted(map(len, groups)) == [1, 2, 2]
    assert sorted(functools.reduce(operator.iadd, groups, [])) == [0, 1, 2, 3, 4]
