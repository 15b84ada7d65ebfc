"""Newcomers of HCCT start from the mean of all models, whatever becomes of the manager that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, Order, RunGroupRequest, Train, Trained
from fedgsp_node.order_error import OrderError
from fedgsp_node.trainer import Trainer
from tests.support.coming_and_going import JOINS, NEW, play_with_newcomers
from tests.support.gated_task import ALPHA, oracle
from tests.support.managers_here import managers_here
from tests.support.reference_groups import assert_equals
from top_server.managers.client import BrokenOff, ManagerClient

#: Nobody gains by others, so that all models are on nodes.
ALONE = {"alpha": "0"}
GONE = Failure(FailureCode.UNREACHABLE, "the transfer broke off")


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


@pytest.mark.parametrize("stumbling", [(4,), NEW], ids=["one", "all"])
async def test_newcomers_who_cannot_train_as_they_are_welcomed_start_from_the_mean_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stumbling: tuple[int, ...]
) -> None:
    train = Trainer.carry_out

    async def stumbles(self: Trainer, order: Order, work: Train, *arguments: Any) -> Trained:
        if order.client in stumbling and "/3/0/alone/" in work.produces:
            raise OrderError(Failure(FailureCode.TASK_RAISED, "the camera broke"))
        return await train(self, order, work, *arguments)

    monkeypatch.setattr(Trainer, "carry_out", stumbles)
    run = await play_with_newcomers(tmp_path, grouping_option=ALPHA, scheme="hcct")
    assert [(event["round"], event["client"]) for event in run.of_kind("client_skipped")] == [
        (3, client) for client in stumbling
    ]
    assert_equals(run, oracle(joins=JOINS, stumbling=stumbling).play_hcct())


async def test_a_mean_is_that_of_all_models_also_at_a_manager_to_which_their_nodes_had_nothing_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_group, asked = ManagerClient.run_group, list[str]()

    async def breaking(self: ManagerClient, request: RunGroupRequest, *arguments: Any) -> Any:
        if request.parts:
            asked.append(self._name)
            if len(asked) == 1:
                return BrokenOff(GONE, lost=True)
        return await run_group(self, request, *arguments)

    monkeypatch.setattr(ManagerClient, "run_group", breaking)
    run = await play_with_newcomers(tmp_path, grouping_option=ALONE, scheme="hcct")
    assert len(set(asked)) == 2
    assert_equals(run, oracle(joins=JOINS, options=ALONE).play_hcct())
