"""A client whose result a group could not use goes on from the model that it started from."""

from __future__ import annotations

from fedgsp.messages import Order, OrderKey, Release, Start, Train
from tests.support.working import HERE, OWN, ROUND, SETTINGS, node


async def test_a_result_that_its_group_lets_go_leaves_the_model_that_it_started_from() -> None:
    async with node() as n:
        await n.do(Train(Start("start", HERE), "r1", SETTINGS, retain=True))
        await n.do(Train(Start("r1", OWN), "r2", SETTINGS, retain=True))
        await n.worker.carry_out(Order(OrderKey(ROUND, "release", 0, 1), 0, Release(("r2",))), n._upload)
        assert "r1" in n.store  # the top server still starts the client's next round from it
