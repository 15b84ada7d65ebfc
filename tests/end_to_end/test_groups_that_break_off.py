"""A group that breaks off at a manager that lives goes on elsewhere; the other groups of that manager stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, ModelRef, RunGroupRequest
from fedgsp.programs import Program
from group_manager.group import Group
from group_manager.server import GroupServicer
from tests.end_to_end.test_recovery import nodes, oracle, settings
from tests.support.cluster import Finished, play
from tests.support.managers_here import managers_here
from tests.support.reference import assert_same_bits
from top_server.managers.client import BrokenOff, ManagerClient


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


async def played(tmp_path: Path, **changes: Any) -> Finished:
    """FedGSP with four groups in round 2, dealt over two managers."""
    run = await play(
        settings(tmp_path, rounds=2, beta=4, sampling_rate=1.0, **changes), nodes([0, 2, 4, 6], [1, 3, 5, 7])
    )
    assert_same_bits(run.model(2), oracle(2, beta=4).play_fedgsp()[1])
    assert not run.of_kind("manager_lost")
    assert len(run.of_kind("manager_spawned")) <= 2
    return run


async def test_a_group_whose_call_fails_goes_on_and_its_manager_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_group, failed = GroupServicer.RunGroup, Counter[int]()

    async def breaking(self: GroupServicer, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in run_group(self, request, context):
            yield event
            if request.round == 2 and request.group == 1 and not failed[request.group]:
                failed[request.group] += 1
                raise MemoryError

    monkeypatch.setattr(GroupServicer, "RunGroup", breaking)
    run = await played(tmp_path)
    assert failed == {1: 1}
    assert {(event["round"], event["group"]) for event in run.of_kind("group_resumed")} == {(2, 1)}


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 2])
async def test_a_result_that_does_not_come_is_asked_for_again_and_then_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    fetch, run_group = ManagerClient._fetch, ManagerClient.run_group
    tried: list[str] = []
    attempts: list[int] = []

    async def breaking(self: ManagerClient, ref: ModelRef, *arguments: Any) -> Any:
        if "/2/1/relay" in ref.id and len(tried) < times:
            tried.append(ref.id)
            reason = Failure(FailureCode.UNREACHABLE, "ABORTED: newer calls for the same thing have come")
            return BrokenOff(reason, lost=False)
        return await fetch(self, ref, *arguments)

    async def noting(self: ManagerClient, request: RunGroupRequest, *arguments: Any) -> Any:
        if (request.round, request.group, request.program) == (2, 1, "relay"):
            attempts.append(request.attempt)
        return await run_group(self, request, *arguments)

    monkeypatch.setattr(ManagerClient, "_fetch", breaking)
    monkeypatch.setattr(ManagerClient, "run_group", noting)
    run = await played(tmp_path)
    assert len(tried) == times
    assert len(run.of_kind("group_resumed")) == times - 1
    assert len(attempts) == times


async def test_a_node_that_cannot_be_reached_is_not_a_manager_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is that of a lost connection; a group may report it of a member."""
    load = Program.load

    def failing(self: Program) -> Any:
        async def run(group: Group) -> Any:
            if (group.request.round, group.request.group, self.name) == (2, 1, "relay"):
                return Failure(FailureCode.UNREACHABLE, "no member trained; the last reason: no route to node n0")
            return await load(self)(group)

        return run

    monkeypatch.setattr(Program, "load", failing)
    config = settings(tmp_path, rounds=2, beta=4, sampling_rate=1.0)
    run = await play(config, nodes([0, 2, 4, 6], [1, 3, 5, 7]))
    assert not run.of_kind("manager_lost")
    assert not run.of_kind("group_resumed")
    assert [(event["round"], event["group"]) for event in run.of_kind("group_failed")] == [(2, 1)]
    assert 0 < run.rows[1]["clients_trained"] < 8
