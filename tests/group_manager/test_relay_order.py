"""The order in which clients train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_manager.chain import client_order

CLIENTS = range(20)


def clients(seed: int = 0, round_number: int = 1, group: int = 0, shuffle: bool = True) -> list[int]:
    return client_order(CLIENTS, shuffle, seed, round_number, group)


def test_a_fixed_order_is_that_of_the_members() -> None:
    assert clients(shuffle=False) == list(range(20))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**63), round_number=st.integers(1, 10_000), group=st.integers(0, 500))
def test_a_shuffled_order_is_a_permutation_and_repeats_itself(seed: int, round_number: int, group: int) -> None:
    order = clients(seed, round_number, group)
    assert sorted(order) == list(range(20))
    assert order == clients(seed, round_number, group)


@pytest.mark.parametrize("changes", [{"seed": 1}, {"round_number": 2}, {"group": 1}])
def test_every_seed_round_and_group_has_an_order_of_its_own(changes: dict[str, Any]) -> None:
    assert clients(**changes) != clients()


def test_every_client_comes_first_in_some_round() -> None:
    firsts = np.bincount([clients(round_number=number)[0] for number in range(1, 401)], minlength=20)
    assert firsts.min() > 0


def test_one_member_and_none_have_their_order() -> None:
    assert client_order([7], True, 0, 1, 0) == [7]
    assert client_order((), True, 0, 1, 0) == []
