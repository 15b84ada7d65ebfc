"""Who has a place in a plan, and the groups that a later request finds settled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from top_server.grouping import GroupingRequest, Plan

PLAN = Plan(((4, 1), (7,), (2, 9)), (3,))


def request(clients: tuple[int, ...], settled: tuple[tuple[int, ...], ...]) -> GroupingRequest:
    return GroupingRequest(1, 1, 0, clients, np.ones(len(clients), np.int64), settled=settled)


@pytest.mark.parametrize(
    ("clients", "named"),
    [((), True), ((1, 2, 3, 4, 7, 9), True), ((9,), True), ((3,), True), ((5,), False), ((1, 2, 5), False)],
)
def test_grouped_and_idle_clients_have_a_place(clients: tuple[int, ...], named: bool) -> None:
    assert PLAN.names(clients) is named
    assert PLAN.names(iter(clients)) is named


@pytest.mark.parametrize(
    ("clients", "groups"),
    [
        ((1, 2, 3, 4, 7, 9), ((4, 1), (7,), (2, 9))),
        ((9, 4, 2), ((4,), (2, 9))),
        ((3, 5), ()),
        ((), ()),
        ((1, 5), ((1,),)),
    ],
)
def test_groups_keep_those_who_are_there_and_their_order(
    clients: tuple[int, ...], groups: tuple[tuple[int, ...], ...]
) -> None:
    assert PLAN.among(clients) == groups
    assert PLAN.among(iter(clients)) == groups


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.sets(st.integers(0, 30), min_size=1), st.data())
def test_what_is_left_of_a_plan_can_always_be_asked_with(
    members: list[int], there: set[int], data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, 3), min_size=len(members), max_size=len(members)))
    groups = [tuple(m for m, place in zip(members, places, strict=True) if place == group) for group in range(1, 4)]
    idle = tuple(m for m, place in zip(members, places, strict=True) if not place)
    plan = Plan(tuple(group for group in groups if group), idle)
    settled = request(tuple(sorted(there)), plan.among(there)).settled
    assert {client for group in settled for client in group} == there & (set(members) - set(idle))
    assert plan.names(there) == (there <= set(members))


@pytest.mark.parametrize("settled", [(), ((1, 2),), ((2,), (1,)), ((3, 1), (2,))])
def test_settled_groups_are_of_the_clients(settled: tuple[tuple[int, ...], ...]) -> None:
    assert request((1, 2, 3), settled).settled == settled


@pytest.mark.parametrize("settled", [((1, 4),), ((1, 2), (2,)), ((1, 1),), ((1,), ()), ((),), ((4,),)])
def test_settled_groups_that_cannot_be_are_refused(settled: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="settled groups must be disjoint, not empty, and of these clients"):
        request((1, 2, 3), settled)
