"""Clients that come after the groups were formed, or are away when they are formed anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from top_server.grouping import Plan


def test_latecomers_join_the_smallest_group_each_of_equals_the_first() -> None:
    plan, placed = Plan(((0, 1, 2), (3,), (4,)), ()).with_latecomers(range(8))
    assert plan.groups == ((0, 1, 2), (3, 5, 7), (4, 6))
    assert placed == {5: 1, 6: 2, 7: 1}


def test_those_who_idle_have_their_place_already_and_those_who_left_keep_theirs() -> None:
    before = Plan(((0, 1), (2, 3)), (4,))
    plan, placed = before.with_latecomers([0, 4])
    assert (plan, placed) == (before, {})


@given(
    st.integers(1, 4).flatmap(lambda groups: st.lists(st.integers(0, groups), min_size=groups, max_size=12)),
    st.sets(st.integers(0, 25), max_size=15),
)
def test_everybody_is_placed_once_and_nobody_moves(places: list[int], clients: set[int]) -> None:
    groups = [tuple(c for c, place in enumerate(places) if place == group) for group in range(1, 5)]
    before = Plan(tuple(group for group in groups if group) or ((99,),), (77,))
    plan, placed = before.with_latecomers(clients)
    for index, group in enumerate(before.groups):
        assert plan.groups[index][: len(group)] == group
        assert plan.groups[index][len(group) :] == tuple(sorted(c for c, at in placed.items() if at == index))
    named = [client for group in plan.groups for client in group]
    assert len(named) == len(set(named))
    assert set(named) == {client for group in before.groups for client in group} | (clients - {77})
    grown = [len(plan.groups[index]) for index in placed.values()]
    untouched = [len(group) for index, group in enumerate(plan.groups) if index not in placed.values()]
    assert not grown or not untouched or max(grown) <= min(untouched) + 1


def test_who_is_away_stays_with_most_of_its_group_or_with_its_rest() -> None:
    before = Plan(((0, 1, 2, 3), (4, 5), (6,)), (7,))
    split = Plan(((0,), (1, 2), (8,)), (7,))
    assert split.with_absent(before) == Plan(((0,), (1, 2, 3), (8,), (4, 5), (6,)), (7,))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=10), st.lists(st.integers(-1, 3), min_size=10, max_size=10))
def test_everybody_stays_named_once_and_those_who_are_there_stay_together(old: list[int], new: list[int]) -> None:
    def plan(places: list[int]) -> Plan:
        groups = [tuple(c for c, place in enumerate(places) if place == group) for group in range(4)]
        return Plan(tuple(group for group in groups if group), ())

    before, now = plan(old), plan(new)
    kept = now.with_absent(before)
    named = [client for group in kept.groups for client in group]
    assert len(named) == len(set(named))
    assert set(named) == {client for group in (*before.groups, *now.groups) for client in group}
    assert kept.among({client for group in now.groups for client in group}) == now.groups
