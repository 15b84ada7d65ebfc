"""What optimisers leave in a local run stays in it."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedgsp.messages import Evaluate, OptimizerSettings, Order, OrderKey, Start, Train, Work
from fedgsp.optimizers import KEPT
from tests.support.working import HERE, SETTINGS, Node, node


async def test_a_run_does_not_go_on_from_what_optimisers_have_left_in_its_local_run() -> None:
    """Otherwise a run that makes its local run would have other bits than one that reads it from its directory."""
    settings = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT))

    async def carried_out(n: Node, run: str, number: int, work: Work) -> Any:
        return await n.worker.carry_out(Order(OrderKey(number, "any", 0, 0, run=run), 0, work), n._upload)

    def train(produces: str) -> Train:
        return Train(Start("start", HERE), produces, settings)

    judge = Evaluate(Start("start", HERE), settings=settings, personalised=True)
    async with node() as n:
        expected = await carried_out(n, "run", 3, train("made"))
    async with node() as n:
        alone = [await carried_out(n, "run.alone", number, train(f"alone {number}")) for number in (1, 2, 3)]
        assert [report.afresh for report in alone] == [True, False, False]
        assert [(await carried_out(n, run, 3, judge)).afresh for run in ("run.alone", "run")] == [False, True]
        made = await carried_out(n, "run", 3, train("made"))
        assert made.afresh
        assert made.ref == expected.ref
        assert not (await carried_out(n, "run", 3, judge)).afresh
