"""Evidence about nobody: the clients are asked again if others than those that were asked may answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, MemberSkipped
from tests.support.surveyed import Surveys, surveyed
from top_server.evidence import Evidence
from top_server.groups import run
from top_server.groups.lost import AllLostError
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.nodes.membership import MOST_OFFENCES
from top_server.nodes.node import Node
from top_server.rounds import gather

REFUSED = Failure(FailureCode.POLICY, "not allowed")


async def refused(
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Surveys, Node], Awaitable[None]],
    before: Callable[[Surveys, Node], Awaitable[None]],
) -> Evidence:
    """Two nodes are there, and all clients refuse to evaluate; this happens meanwhile, and that before."""
    async with surveyed(monkeypatch, 2) as surveys:
        s, node = surveys.stage, await surveys.join("n1", c7=40)
        s.context.membership.departures.counting = True  # the run has its clients
        await before(surveys, node)

        async def run_group(_context: Any, _progress: Any, _number: int, task: GroupTask, *_: Any) -> GroupOutcome:
            await meanwhile(surveys, node)
            return surveys.outcome(task, skipped=tuple(MemberSkipped(client, REFUSED) for client in task.clients))

        monkeypatch.setattr(run, "run_group", run_group)
        return await gather(s.progress, s.profile("training-accuracy"), 2)


async def nothing(_surveys: Surveys, _node: Node) -> None:
    """All stay as they are."""


async def joins(surveys: Surveys, _node: Node) -> None:
    await surveys.join("late", c8=40)


async def leaves(surveys: Surveys, node: Node) -> None:
    await surveys.stage.context.membership.leave(node, "its stream was lost")


async def comes_back(surveys: Surveys, node: Node) -> None:
    await leaves(surveys, node)
    await surveys.join("n1", c7=40)


async def is_left_out_and_leaves(surveys: Surveys, node: Node) -> None:
    for _ in range(MOST_OFFENCES):
        surveys.stage.context.membership.note_offence(7)
    await leaves(surveys, node)


@pytest.mark.parametrize(
    ("meanwhile", "before"), [(joins, nothing), (leaves, nothing), (comes_back, nothing), (nothing, leaves)]
)
async def test_somebody_may_answer_who_was_not_asked_or_lost(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Any, before: Any
) -> None:
    with pytest.raises(AllLostError, match=r"no client that is there reported its profile"):
        await refused(monkeypatch, meanwhile, before)


@pytest.mark.parametrize("before", [nothing, joins, comes_back, is_left_out_and_leaves])
async def test_if_all_were_asked_and_refuse_there_is_no_evidence(monkeypatch: pytest.MonkeyPatch, before: Any) -> None:
    assert (await refused(monkeypatch, nothing, before)).clients == ()
