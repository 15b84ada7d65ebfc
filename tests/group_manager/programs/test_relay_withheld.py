"""A node of a relay that says that its model is made, and gives it to no other node."""

from __future__ import annotations

import pytest

from fedgsp.messages import FailureCode, RelayMode, Rerouted
from tests.support.faults import Faults
from tests.support.scene import hosted, relayed, scene

FIVE_NODES = hosted(**{f"n{client}": [client] for client in range(5)})


async def test_a_node_that_gives_its_model_to_no_other_node_costs_nobody_the_round() -> None:
    async with scene(Faults().withhold("n1")) as play:
        outcome = await play.run(FIVE_NODES)
        assert await play.result(outcome) == relayed(range(5))
        assert play.skipped == {}
        assert play.done == list(range(5))
        (told,) = [event.kind for event in play.events if isinstance(event.kind, Rerouted)]
        assert told == Rerouted(2, "nothing came from node n1: by way of the manager: it is asked again")


@pytest.mark.parametrize("fault", ["silent", "refuses"])
async def test_a_node_that_gives_its_model_to_nobody_is_the_one_that_is_skipped(fault: str) -> None:
    faults = Faults().withhold("n1")
    async with scene(
        faults.never_send_up("n1", True) if fault == "silent" else faults.refuse_upload("n1", True)
    ) as play:
        outcome = await play.run(FIVE_NODES)
        assert await play.result(outcome) == relayed([0, 2, 3, 4])
        assert set(play.skipped) == {1}


async def test_a_member_that_hangs_after_it_came_to_the_manager_is_skipped_at_once() -> None:
    async with scene(Faults().unreachable("n1").stall(2)) as play:
        outcome = await play.run(FIVE_NODES)
        assert await play.result(outcome) == relayed([0, 1, 3, 4])
        assert set(play.skipped) == {2}


async def test_where_models_may_not_go_by_way_of_the_manager_the_readers_are_skipped() -> None:
    async with scene(Faults().withhold("n1")) as play:
        outcome = await play.run(FIVE_NODES, relay=RelayMode.DIRECT)
        assert await play.result(outcome) == relayed([0, 1])
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == dict.fromkeys(
            [2, 3, 4], FailureCode.STALLED
        )
