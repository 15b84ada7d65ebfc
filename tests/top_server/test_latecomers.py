"""Clients that come after a static scheme formed its groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from top_server.grouping import Plan
from top_server.latecomers import with_latecomers


def test_latecomers_join_the_smallest_group_each_of_equals_the_first() -> None:
    plan, placed = with_latecomers(Plan(((0, 1, 2), (3,), (4,)), ()), range(8))
    assert plan.groups == ((0, 1, 2), (3, 5, 7), (4, 6))
    assert placed == {5: 1, 6: 2, 7: 1}


def test_those_who_idle_have_their_place_already_and_those_who_left_keep_theirs() -> None:
    before = Plan(((0, 1), (2, 3)), (4,))
    plan, placed = with_latecomers(before, [0, 4])
    assert (plan, placed) == (before, {})


@given(
    st.integers(1, 4).flatmap(lambda groups: st.lists(st.integers(0, groups), min_size=groups, max_size=12)),
    st.sets(st.integers(0, 25), max_size=15),
)
def test_everybody_is_placed_once_and_nobody_moves(places: list[int], clients: set[int]) -> None:
    groups = [tuple(c for c, place in enumerate(places) if place == group) for group in range(1, 5)]
    before = Plan(tuple(group for group in groups if group) or ((99,),), (77,))
    plan, placed = with_latecomers(before, clients)
    for index, group in enumerate(before.groups):
        assert plan.groups[index][: len(group)] == group
        assert plan.groups[index][len(group) :] == tuple(sorted(c for c, at in placed.items() if at == index))
    named = [client for group in plan.groups for client in group]
    assert len(named) == len(set(named))
    assert set(named) == {client for group in before.groups for client in group} | (clients - {77})
    grown = [len(plan.groups[index]) for index in placed.values()]
    untouched = [len(group) for index, group in enumerate(plan.groups) if index not in placed.values()]
    assert not grown or not untouched or max(grown) <= min(untouched) + 1
