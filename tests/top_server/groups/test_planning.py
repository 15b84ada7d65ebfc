"""Tasks hold for all clients of their groups, also for clients whose nodes are away when the tasks are made."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, HostedClient, Member
from tests.support.callers import ANYBODY
from tests.support.hellos import hello
from tests.support.scripted import TENSORS
from tests.support.staged import Stage, stage
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.groups.planning import count_tasks, round_tasks
from top_server.groups.run import _member
from top_server.groups.task import GroupTask
from top_server.models import INITIAL
from top_server.nodes.membership import MOST_OFFENCES
from top_server.nodes.node import Node
from top_server.schemes import SCHEMES
from top_server.teams import Teams

GROUP = (0, 1, 2, 3)


@asynccontextmanager
async def run_of(scheme: str, **changes: Any) -> AsyncIterator[tuple[Stage, Node]]:
    """Clients 0 and 1 stay, with 10 and 11 samples; 2 and 3, with 12 and 13, are on a node that has left."""
    async with stage(SCHEMES[scheme].merge, 2, scheme=scheme) as s:
        s.context = dataclasses.replace(s.context, scheme=dataclasses.replace(SCHEMES[scheme], **changes))
        node = await joins(s, 2, 3)
        await s.context.membership.leave(node, "its stream was lost")
        yield s, node


async def joins(s: Stage, *clients: int, samples: int = 10) -> Node:
    hosted = tuple(HostedClient(client, samples + client, 5) for client in clients)
    told = dataclasses.replace(hello("n1", tensors=TENSORS), clients=hosted)
    node = await s.context.membership.admit(told, ANYBODY)
    assert isinstance(node, Node), node
    return node


def tasks_of(s: Stage, evidence: Evidence, *groups: tuple[int, ...]) -> list[GroupTask]:
    teams = Teams(Plan(groups, ()), groups)
    tasks = round_tasks(s.context.scheme, s.merging, s.context.holdings({}), teams, evidence)
    assert len(tasks) == count_tasks(s.merging, teams)
    return tasks


def members(s: Stage, task: GroupTask) -> dict[int, Member | Failure]:
    return {client: _member(s.context, task, client) for client in task.clients}


def weights(s: Stage, task: GroupTask) -> list[float]:
    """Of the members, as their order has them; each of them takes part."""
    found = members(s, task).values()
    assert not [one for one in found if isinstance(one, Failure)]
    return [one.weight for one in found if isinstance(one, Member)]


def reasons(s: Stage, task: GroupTask, code: FailureCode = FailureCode.UNSPECIFIED) -> dict[int, str]:
    """Why clients take no part; all for a reason with this code, by default one for which no node is to blame."""
    failures = {client: one for client, one in members(s, task).items() if isinstance(one, Failure)}
    assert {one.code for one in failures.values()} <= {code}
    return {client: one.detail for client, one in failures.items()}


ACCURACY = {"train_accuracy": np.array([[0.5], [0.25], [0.5], [0.125]])}
LOSSES = {"train_loss": np.array([[1.0], [2.0], [3.0], [3.0]]), "prior_loss": np.ones((4, 1))}


@pytest.mark.parametrize(
    ("scheme", "changes", "figures", "expected"),
    [
        ("global", {}, {}, [10, 11, 12, 13]),
        ("global", {"weighing": "uniform"}, {}, [1, 1, 1, 1]),
        ("fedcluster", {}, {}, [1, 1, 1, 1]),
        ("fedfa", {}, ACCURACY, [1, 2, 1, 3]),
        ("maxfl", {}, LOSSES, [0.25, 0.196611933, 0.104993585, 0.104993585]),
    ],
)
async def test_a_client_that_comes_back_after_the_planning_has_the_weight_of_its_weighing(
    scheme: str, changes: dict[str, Any], figures: dict[str, Any], expected: list[float]
) -> None:
    async with run_of(scheme, **changes) as (s, _):
        (task,) = tasks_of(s, Evidence(GROUP, figures=figures), GROUP)
        assert reasons(s, task, FailureCode.NODE_LOST) == {2: "its node left", 3: "its node left"}
        await joins(s, 2, 3)
        assert weights(s, task) == pytest.approx(expected)


async def test_the_plan_does_not_depend_on_who_is_there() -> None:
    async with run_of("fedfa") as (s, _):
        evidence = Evidence(GROUP, figures=ACCURACY)
        (before,) = tasks_of(s, evidence, GROUP)
        await joins(s, 2, 3)
        (after,) = tasks_of(s, evidence, GROUP)
        assert after.weights == before.weights


async def test_a_client_of_which_the_profile_knows_nothing_is_left_out_where_its_weight_follows_from_that() -> None:
    """A member of groups that stay, which was away when evidence was gathered; here or in the first place."""
    async with run_of("fedfa", grouping="random", regroup="never") as (s, _):
        evidence = Evidence((0, 1), figures={"train_accuracy": np.array([[0.5], [0.25]])})
        (task,) = tasks_of(s, evidence, (0, 1, 2))
        await joins(s, 2)
        assert reasons(s, task).keys() == {2}
        assert "it has no weight in the mean" in reasons(s, task)[2]
        s.context = dataclasses.replace(s.context, scheme=dataclasses.replace(s.context.scheme, weighing="samples"))
        (task,) = tasks_of(s, evidence, (0, 1, 2))
        assert weights(s, task) == [10, 11, 12]


async def test_a_client_that_was_never_there_has_no_weight() -> None:
    """As after a resume, of a client that comes back only now."""
    async with run_of("global") as (s, _):
        (task,) = tasks_of(s, Evidence((0, 1)), (0, 1, 7))
        await joins(s, 7)
        assert reasons(s, task).keys() == {7}
        relay = dataclasses.replace(task, program="relay")
        assert not reasons(s, relay), "members of a chain are not weighed"


async def test_a_client_that_comes_back_with_other_data_is_left_out_until_the_next_planning() -> None:
    async with run_of("fedcluster") as (s, _):
        (task,) = tasks_of(s, Evidence(GROUP), GROUP)
        await joins(s, 2, 3, samples=500)
        assert reasons(s, task) == {
            2: "it had 12 training samples when its group was planned, and has come back with 502",
            3: "it had 13 training samples when its group was planned, and has come back with 503",
        }
        (task,) = tasks_of(s, Evidence(GROUP), GROUP)
        assert weights(s, task) == [1, 1, 1, 1]


async def test_a_group_that_is_away_starts_from_the_models_of_all_its_members() -> None:
    async with run_of("fedcollab") as (s, _):
        evidence = Evidence(GROUP)
        away, there = tasks_of(s, evidence, (2, 3), (0, 1))
        assert [weight for _, weight in away.starts] == [25.0]
        await joins(s, 2, 3)
        assert tasks_of(s, evidence, (2, 3), (0, 1)) == [away, there]
        assert weights(s, away) == [12, 13]


@pytest.mark.parametrize("scheme", ["independent", "hcct"])
async def test_clients_that_train_alone_have_their_starts_wherever_their_nodes_are(scheme: str) -> None:
    async with run_of(scheme) as (s, _):
        (task,) = tasks_of(s, Evidence(GROUP), *((client,) for client in GROUP))
        assert list(task.own_starts.values()) == [s.context.models[INITIAL]] * 4
        await joins(s, 2, 3)
        assert not reasons(s, task)


async def test_a_client_without_a_start_costs_no_other_client_the_round() -> None:
    async with run_of("independent") as (s, _):
        (task,) = tasks_of(s, Evidence((0, 1)), (0,), (1,), (7,))
        await joins(s, 7)
        assert reasons(s, task) == {7: "when its group was planned, no model was known that it could start from"}


async def test_a_client_whose_models_were_refused_too_often_is_not_one_whose_node_left() -> None:
    """Groups that stay still have it."""
    async with run_of("fedgsp") as (s, _):
        await joins(s, 2, 3)
        (task,) = tasks_of(s, Evidence(GROUP), GROUP)
        for _ in range(MOST_OFFENCES):
            s.context.membership.note_offence(2)
        assert reasons(s, task) == {2: "it is left out of the run: its models were refused"}


async def test_a_client_that_its_node_came_back_without_is_told_so() -> None:
    async with run_of("fedgsp") as (s, _):
        s.context.membership.departures.left("n1", [2, 3], "its stream was lost")
        await joins(s, 2)
        (task,) = tasks_of(s, Evidence(GROUP), GROUP)
        assert reasons(s, task, FailureCode.UNKNOWN_CLIENT).keys() == {3}
