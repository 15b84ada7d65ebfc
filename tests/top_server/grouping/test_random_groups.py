from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from top_server.grouping import GROUPINGS, GroupingRequest

random_groups = GROUPINGS["random"]
single_group = GROUPINGS["single"]


def request_for(clients: int, groups: int, mode: str = "exact") -> GroupingRequest:
    sizes = np.ones(clients, np.int64)
    return GroupingRequest(1, groups, 0, tuple(range(clients)), sizes, options={"mode": mode})


@pytest.mark.parametrize(
    ("mode", "sizes", "idle"), [("exact", [7] * 50, 18), ("paper", [7] * 52, 4), ("all", [7] * 32 + [8] * 18, 0)]
)
def test_sizes_are_those_of_the_mode(mode: str, sizes: list[int], idle: int) -> None:
    request = request_for(368, 50, mode)
    plan = random_groups(request)
    plan.check(request)
    assert sorted(map(len, plan.groups)) == sizes
    assert len(plan.idle) == idle


def test_every_round_and_every_seed_draws_anew() -> None:
    request = request_for(20, 4)
    plans = {random_groups(replace(request, round=r, seed=s)) for r in range(3) for s in range(3)}
    assert len(plans) == 9


def test_every_client_idles_in_some_round() -> None:
    request = request_for(7, 3)
    assert {client for r in range(60) for client in random_groups(replace(request, round=r)).idle} == set(range(7))


def test_single_puts_everybody_together_whatever_is_asked() -> None:
    plan = single_group(replace(request_for(6, 4), options={}))
    assert plan.groups == ((0, 1, 2, 3, 4, 5),)
    assert plan.idle == ()
