"""Newcomers of HCCT start from the mean of all models, whatever becomes of the manager that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, ModelRef, Order, RunGroupRequest, Train, Trained
from fedgsp_node.order_error import OrderError
from fedgsp_node.trainer import Trainer
from tests.support.coming_and_going import JOINS, NEW, play_with_newcomers
from tests.support.gated_task import ALPHA, oracle
from tests.support.managers_here import managers_here
from tests.support.reference_groups import assert_equals
from top_server.groups.run import MOST_MANAGERS
from top_server.managers.client import BrokenOff, ManagerClient

#: Nobody gains by others, so that all models are on nodes.
ALONE = {"alpha": "0"}
GONE = Failure(FailureCode.UNREACHABLE, "the transfer broke off")


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


def mean_breaks_off(monkeypatch: pytest.MonkeyPatch, times: int, lost: bool = False) -> list[str]:
    """So many times, the mean from which newcomers start in round 3 does not come; returns its ids, as they come."""
    take, tried = ManagerClient.take, list[str]()

    async def breaking(self: ManagerClient, ref: ModelRef, *arguments: Any) -> Any:
        if "/3/0/alone/start" in ref.id and len(tried) < times:
            tried.append(ref.id)
            return BrokenOff(GONE, lost)
        return await take(self, ref, *arguments)

    monkeypatch.setattr(ManagerClient, "take", breaking)
    return tried


@pytest.mark.parametrize("options", [ALPHA, ALONE], ids=["grouped", "alone"])
@pytest.mark.parametrize("lost", [False, True], ids=["there", "lost"])
async def test_a_mean_that_its_manager_does_not_give_is_made_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], lost: bool
) -> None:
    tried = mean_breaks_off(monkeypatch, 1, lost)
    run = await play_with_newcomers(tmp_path, grouping_option=options, scheme="hcct")
    assert len(tried) == 1
    assert [(event["round"], event["program"]) for event in run.of_kind("group_resumed")] == [(3, "alone")]
    assert len(run.of_kind("manager_lost")) == int(lost)
    assert_equals(run, oracle(joins=JOINS, options=options).play_hcct())
    assert [(event["round"], event["clients"]) for event in run.of_kind("newcomers")] == [(3, list(NEW))]


@pytest.mark.parametrize("lost", [False, True], ids=["there", "lost"])
async def test_newcomers_whose_mean_does_not_come_from_any_manager_are_newcomers_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    tried = mean_breaks_off(monkeypatch, MOST_MANAGERS, lost)
    run = await play_with_newcomers(tmp_path, grouping_option=ALPHA, scheme="hcct")
    assert len(tried) == MOST_MANAGERS
    assert len(run.of_kind("manager_lost")) == (MOST_MANAGERS if lost else 0)
    (waits,) = run.of_kind("newcomers_wait")
    assert (waits["round"], waits["clients"], waits["reason"]) == (3, list(NEW), str(GONE))
    assert [(event["round"], event["clients"]) for event in run.of_kind("newcomers")] == [(4, list(NEW))]
    assert_equals(run, oracle(joins=dict.fromkeys(NEW, 4)).play_hcct())
    (missed,) = run.of_kind("clients_missed")
    told = {"clients": list(NEW), "first": 3, "last": 3, "code": "UNREACHABLE", "reason": str(GONE)}
    assert missed.items() >= told.items()


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
