"""How many clients of a group have trained, as the live view counts them."""

from __future__ import annotations

import pytest

from tests.top_server.view.test_view import event, hop, round_started, started, state_after


def test_a_client_that_trains_again_counts_once() -> None:
    state = state_after(*started(), round_started(1, 1, members=2), *(hop(0, place, 2) for place in (0, 1, 0, 1)))
    assert (state.groups[0].hops, state.groups[0].members) == (2, 2)


def test_trainings_that_a_resumed_run_has_kept_count_in_the_round_that_it_continues() -> None:
    teams = [[4, 2, 0], [1, 3]]
    begun = event("round_started", round=1, groups=2, sampled_groups=2, teams=teams)
    state = state_after(*started(), event("round_resumed", round=1, hops=2, kept=[4, 2]), begun, hop(0, 0, 3))
    assert [(group.hops, group.members) for group in state.groups.values()] == [(3, 3), (0, 2)]
    state.apply({**begun, "round": 2})
    assert [group.hops for group in state.groups.values()] == [0, 0]


@pytest.mark.parametrize("kind", ["hop_finished", "client_skipped"])
def test_what_clients_do_between_two_rounds_is_no_group_s(kind: str) -> None:
    """Prior models that are trained again for an earlier round, newcomers of the next one, and evaluations."""
    state = state_after(
        *started(), round_started(1, 1), hop(0, 0), hop(0, 1), event("group_finished", round=1, group=0)
    )
    for number in (1, 2):
        state.apply(event(kind, round=number, group=0, position=0, members=7, client=3, reason="lost"))
    group = state.groups[0]
    assert (group.members, group.hops, group.skipped) == (5, 2, 0)
