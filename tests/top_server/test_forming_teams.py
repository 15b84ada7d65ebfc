"""When clients are grouped anew: in every round, when some are in no group, or never."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, MemberDone, ModelRef, Results, Trained
from tests.support.callers import ANYBODY
from tests.support.hellos import hello
from tests.support.scripted import TENSORS
from tests.support.staged import Stage, stage
from top_server.evidence import Evidence
from top_server.grouping import GroupingRequest, Plan
from top_server.groups.planning import round_tasks
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.models import Held
from top_server.nodes.node import Node
from top_server.rounds import form_teams, merge
from top_server.schemes import SCHEMES
from top_server.teams import Teams

EVERY = pytest.mark.parametrize("regroup", ["always", "arrivals", "never"])


@dataclass
class Groups:
    """Puts clients that are in no settled group into pairs, and keeps what it was asked."""

    asked: list[GroupingRequest] = field(default_factory=list)
    idle: tuple[int, ...] = ()

    async def __call__(self, request: GroupingRequest) -> Plan:
        self.asked.append(request)
        settled = {client for group in request.settled for client in group}
        rest = [client for client in request.clients if client not in settled and client not in self.idle]
        pairs = tuple(tuple(rest[at : at + 2]) for at in range(0, len(rest), 2))
        return Plan((*request.settled, *pairs), tuple(client for client in request.clients if client in self.idle))


@asynccontextmanager
async def grouping(regroup: str, clients: int = 4, **scheme: Any) -> AsyncIterator[tuple[Stage, Groups]]:
    async with stage("none", clients) as s:
        groups = Groups()
        row = dataclasses.replace(SCHEMES["fedcollab"], regroup=regroup, **scheme)
        s.context = dataclasses.replace(s.context, assign=groups, scheme=row)
        yield s, groups


async def formed(s: Stage, number: int, *clients: int, **evidence: Any) -> tuple[tuple[int, ...], ...]:
    teams = await form_teams(s.context, s.progress, number, Evidence(clients, **evidence))
    assert teams.sampled == teams.plan.groups
    return teams.plan.groups


async def joins(s: Stage, *clients: int) -> Node:
    node = await s.context.membership.admit(hello("n1", clients, tensors=TENSORS), ANYBODY)
    assert isinstance(node, Node), node
    return node


async def test_a_client_that_has_left_since_it_gave_evidence_is_grouped_by_the_samples_that_it_told() -> None:
    async with grouping("arrivals", 2) as (s, groups):
        await s.context.membership.leave(await joins(s, 2, 3), "its stream was lost")
        await formed(s, 1, 0, 1, 2, 3)
        assert groups.asked[0].sizes.tolist() == [10, 11, 12, 13]


async def test_in_a_run_that_was_resumed_the_profile_knows_the_samples_of_a_client_that_is_away() -> None:
    async with grouping("always", 2, grouping="fedcluster") as (s, groups):
        s.progress.plan = Plan(((0, 1, 2),), ())
        await formed(s, 2, 0, 1, 2, away={2: 77})
        assert groups.asked[0].sizes.tolist() == [10, 11, 77]


@EVERY
async def test_in_the_first_round_clients_are_grouped(regroup: str) -> None:
    async with grouping(regroup) as (s, groups):
        assert await formed(s, 1, 0, 1, 2, 3) == ((0, 1), (2, 3))
        (request,) = groups.asked
        assert (request.round, request.clients, request.settled) == (1, (0, 1, 2, 3), ())
        assert request.sizes.tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize(("regroup", "asked"), [("always", 4), ("arrivals", 1), ("never", 1)])
async def test_while_all_have_a_place_only_always_groups_again(regroup: str, asked: int) -> None:
    async with grouping(regroup) as (s, groups):
        for number, clients in enumerate([(0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)], 1):
            await formed(s, number, *clients)
        assert len(groups.asked) == asked


async def test_always_tells_the_groups_of_the_round_before() -> None:
    async with grouping("always", grouping="hcct") as (s, groups):
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 0, 2, 3) == ((0,), (2, 3))
        await formed(s, 3, 0, 1, 2, 3)
        assert [request.settled for request in groups.asked] == [(), ((0,), (2, 3)), ((0,), (2, 3))]


@pytest.mark.parametrize("scheme", ["fedcluster", "fedcollab", "kmeans"])
async def test_a_grouping_that_goes_on_from_its_groups_keeps_the_place_of_who_is_away(scheme: str) -> None:
    row = SCHEMES[scheme]
    async with grouping(row.regroup, 6, grouping=row.grouping) as (s, groups):
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 0, 2, 3, 5) == ((0, 1), (2, 3), (5,))
        assert groups.asked[1].settled == ((0,), (2, 3))
        assert (await formed(s, 3, 0, 1, 2, 3, 4))[:2] == ((0, 1), (2, 3))
        assert groups.asked[2].settled == ((0, 1), (2, 3))


async def test_arrivals_are_grouped_with_the_settled_groups_of_those_who_are_there() -> None:
    async with grouping("arrivals", 6) as (s, groups):
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 0, 2, 3, 5) == ((0, 1), (2, 3), (5,))
        assert groups.asked[1].settled == ((0,), (2, 3))
        assert groups.asked[1].clients == (0, 2, 3, 5)
        assert s.journal.of_kind("client_placed") == []


@pytest.mark.parametrize("regroup", ["always", "arrivals"])
async def test_newcomers_leave_their_settled_groups_and_are_grouped_again(regroup: str) -> None:
    """Such as a client of which only now is known how far it is from the others."""
    async with grouping(regroup) as (s, groups):
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 0, 1, 2, 3, newcomers=(1,)) == ((0,), (2, 3), (1,))
        request = groups.asked[1]
        assert (request.newcomers, request.settled) == ((1,), ((0,), (2, 3)))
        assert await formed(s, 3, 0, 1, 2, 3) == ((0,), (2, 3), (1,))
        assert len(groups.asked) == (3 if regroup == "always" else 2)


async def test_never_leaves_newcomers_that_have_a_place_where_they_are() -> None:
    async with grouping("never") as (s, groups):
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 0, 1, 2, 3, newcomers=(1,)) == ((0, 1), (2, 3))
        assert len(groups.asked) == 1
        assert s.journal.of_kind("client_placed") == []


async def test_a_group_whose_members_have_all_left_is_kept() -> None:
    async with grouping("arrivals", 6) as (s, groups):
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 2, 3) == ((0, 1), (2, 3))
        assert await formed(s, 3, 2, 3, 4) == ((2, 3), (4,), (0, 1))
        assert groups.asked[1].settled == ((2, 3),)


async def test_those_who_idle_have_their_place_and_are_no_arrivals() -> None:
    async with grouping("arrivals") as (s, groups):
        groups.idle = (3,)
        await formed(s, 1, 0, 1, 2, 3)
        assert await formed(s, 2, 0, 1, 2, 3) == ((0, 1), (2,))
        assert len(groups.asked) == 1


async def test_never_puts_arrivals_into_the_smallest_group_and_says_so() -> None:
    async with grouping("never", 6) as (s, groups):
        await formed(s, 1, 0, 1, 2)
        assert await formed(s, 2, 0, 1, 2, 4, 5) == ((0, 1, 5), (2, 4))
        assert await formed(s, 3, 0, 1, 2, 4, 5) == ((0, 1, 5), (2, 4))
        assert len(groups.asked) == 1
        assert [(event["round"], event["client"], event["group"]) for event in s.journal.of_kind("client_placed")] == [
            (2, 4, 1),
            (2, 5, 0),
        ]


async def test_evidence_goes_with_the_request() -> None:
    async with grouping("always") as (s, groups):
        matrix = np.eye(4)
        await formed(s, 1, 0, 1, 2, 3, pairwise={"distances": matrix}, newcomers=(2,))
        assert groups.asked[0].matrices["distances"] is matrix
        assert groups.asked[0].newcomers == (2,)


@EVERY
async def test_without_evidence_about_anybody_there_are_no_groups(regroup: str) -> None:
    async with grouping(regroup) as (s, _):
        with pytest.raises(RunError, match=r"no client reported its profile \(distances\)"):
            await formed(s, 1)


def test_every_scheme_says_when_it_groups_anew() -> None:
    assert {scheme.regroup for scheme in SCHEMES.values()} == {"always", "arrivals", "never"}
    assert {name for name, scheme in SCHEMES.items() if scheme.regroup == "arrivals"} == {"fedcollab", "kmeans"}


# --- what groups are told of models to retain, and what is known of them afterwards


def tasks_of(s: Stage, groups: tuple[tuple[int, ...], ...], evidence: Evidence) -> list[GroupTask]:
    holdings = s.context.holdings({})
    return round_tasks(s.context.scheme, s.merging, holdings, Teams(Plan(groups, ()), groups), evidence)


@pytest.mark.parametrize(("retain", "results"), [(True, Results.RETAINED), (False, Results.UNSPECIFIED)])
async def test_groups_are_told_to_retain_models_where_a_profile_needs_them(retain: bool, results: Results) -> None:
    async with grouping("always") as (s, _):
        evidence = Evidence((0, 1, 2, 3), retain=retain)
        tasks = tasks_of(s, ((0, 1), (2, 3)), evidence)
        assert [task.results for task in tasks] == [results] * 2


async def test_members_are_weighed_within_their_group() -> None:
    """FedFA: a group that its model serves perfectly counts its members alike, whatever there is elsewhere."""
    async with grouping("always", weighing="fedfa") as (s, _):
        figures = {"train_accuracy": np.array([[1.0], [1.0], [1.0], [0.5]])}
        groups = ((0, 1), (2, 3))
        tasks = tasks_of(s, groups, Evidence((0, 1, 2, 3), figures=figures))
        assert [task.weights for task in tasks] == [{0: 1.0, 1: 1.0}, {2: 0.0, 3: 1.0}]


async def in_a_task(outcome: GroupOutcome) -> GroupOutcome:
    return outcome


async def merged(s: Stage, *outcomes: GroupOutcome, number: int = 1) -> None:
    await merge(
        s.context, s.progress, s.merging, number, [asyncio.create_task(in_a_task(outcome)) for outcome in outcomes]
    )


async def test_what_clients_retain_is_known_by_who_holds_it() -> None:
    async with grouping("always") as (s, _):
        retained = await s.trained((0, 1), 5.0, number=0)
        retained = dataclasses.replace(retained, task=dataclasses.replace(retained.task, results=Results.RETAINED))
        await merged(s, retained, await s.trained((2, 3), 6.0, number=1))
        assert s.progress.local_models == {client: Held(ModelRef(f"of {client}"), client) for client in (0, 1)}
        again = (MemberDone(0, 0, Trained(ModelRef("newer"))),)
        result = (await s.trained((0,), 7.0)).result
        await merged(s, dataclasses.replace(retained, done=again, result=result), number=2)
        assert s.progress.local_models[0] == Held(ModelRef("newer"), 0)
        assert s.progress.local_models[1] == Held(ModelRef("of 1"), 1)


async def test_a_group_that_failed_changes_nothing_that_is_known() -> None:
    async with grouping("always") as (s, _):
        good = await s.trained((2, 3), 6.0, number=1)
        failed = await s.trained((0, 1), 5.0, number=0)
        task = dataclasses.replace(failed.task, results=Results.RETAINED)
        lost = Failure(FailureCode.UNREACHABLE, "manager m0")
        await merged(s, dataclasses.replace(failed, task=task, result=lost), good)
        assert s.progress.local_models == {}


# --- who trains on once clients have joined late


@asynccontextmanager
async def resting(clients: int = 5) -> AsyncIterator[Stage]:
    """0 to 3 are grouped in round 1, in pairs."""
    async with grouping("arrivals", clients, after_arrivals="joined") as (s, _):
        teams = await form_teams(s.context, s.progress, 1, Evidence((0, 1, 2, 3)))
        assert teams.sampled == teams.plan.groups == ((0, 1), (2, 3))
        yield s


async def test_what_a_grouping_says_of_its_choice_is_recorded_and_its_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def doubtful(request: GroupingRequest) -> Plan:
        return Plan((request.clients,), (), "the next best costs 0.1 more", "these are not sure")

    async with grouping("never") as (s, _):
        s.context = dataclasses.replace(s.context, assign=doubtful)
        evidence = Evidence((0, 1, 2, 3))
        teams = await form_teams(s.context, s.progress, 1, evidence)
        assert teams.reason == "clients are grouped for the first time; the next best costs 0.1 more"
        assert [record.getMessage() for record in caplog.records] == ["round=1 these are not sure"]
        again = await form_teams(s.context, s.progress, 2, evidence)
        assert "next best" not in again.reason
        assert len(caplog.records) == 1


async def sampled(s: Stage, number: int, *clients: int) -> tuple[tuple[int, ...], ...]:
    return (await form_teams(s.context, s.progress, number, Evidence(clients))).sampled


async def test_groups_that_nobody_joined_rest() -> None:
    async with resting() as s:
        assert await sampled(s, 2, 0, 1, 2, 3, 4) == ((4,),)
        assert await sampled(s, 3, 0, 1, 2, 3, 4) == ((4,),)
        assert s.progress.plan is not None
        assert s.progress.plan.groups == ((0, 1), (2, 3), (4,))


async def test_all_train_again_when_those_who_joined_are_gone() -> None:
    async with resting(4) as s:
        node = await joins(s, 4)
        await s.context.membership.leave(node, "it left when evidence was gathered")
        assert await sampled(s, 2, 0, 1, 2, 3, 4) == ((0, 1), (2, 3), (4,))


async def test_one_of_the_first_who_was_away_is_not_late() -> None:
    async with resting() as s:
        assert await sampled(s, 2, 0, 1, 3, 4) == ((4,),)
        assert await sampled(s, 3, 0, 1, 2, 3, 4) == ((4,),)


async def test_a_group_with_a_member_whose_model_is_lost_trains_on() -> None:
    async with resting() as s:
        assert await sampled(s, 2, 0, 1, 2, 3, 4) == ((4,),)
        s.progress.afresh.add(2)
        assert await sampled(s, 3, 0, 1, 2, 3, 4) == ((2, 3), (4,))
        s.progress.afresh.clear()
        assert await sampled(s, 4, 0, 1, 2, 3, 4) == ((2, 3), (4,))
