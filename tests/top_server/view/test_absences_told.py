"""Which rounds without the clients of a node get a line."""

from __future__ import annotations

from typing import Any

from top_server.view.state import ViewState


def away(number: int, node: str = "a", *clients: int) -> dict[str, Any]:
    told = {"clients": list(clients or (3, 5)), "seconds": 9.0, "reason": "gone"}
    return {"event": "clients_away", "round": number, "node": node, **told}


def test_clients_that_stay_away_get_ever_fewer_lines_until_others_are_away() -> None:
    state = ViewState()
    assert [number for number in range(1, 121) if state.apply(away(number))] == [1, 10, 100]
    assert state.apply(away(121, "b", 7)) == "round 121 begins without client 7: node b left 9.0 s before: gone"
    assert state.apply(away(122)) is None
    assert state.apply(away(122, "a", 3)) is not None  # another set of clients


def test_a_node_that_came_back_without_a_client_and_left_again_is_told_as_seldom() -> None:
    """Its clients have been away for different times, and for different reasons."""
    state = ViewState()
    told = [number for number in range(1, 20) for client in (5, 3) if state.apply(away(number, "a", client))]
    assert told == [1, 1, 10, 10]
    state.apply({"event": "node_joined", "node": "a", "clients": [3, 5], "address": None})
    assert not state.absences


def test_clients_that_were_there_again_are_named_anew() -> None:
    state = ViewState()
    assert state.apply(away(1)) is not None
    state.apply({"event": "node_joined", "node": "a", "clients": [3, 5], "address": None})
    assert state.apply(away(2)) is not None, "it came back too late for this round"
    state.apply({"event": "node_left", "node": "a", "reason": "gone"})
    assert state.apply(away(30)) is not None
    assert [state.apply(away(number)) for number in range(31, 40)][-1] == (
        "round 39 begins without clients 3, 5: node a left 9.0 s before: gone (10 times so far)"
    )
