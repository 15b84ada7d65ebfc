"""Settled groups on their way to a grouping service and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fedgsp.connections.channels import Channels
from fedgsp.settings.run import RunConfig
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc
from tests.support.serving import serving
from tests.support.staged import stage
from top_server.choosing import choose
from top_server.evidence import Evidence
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping_service import GroupingServicer, assign
from top_server.playing import assign_by
from top_server.rounds import form_teams
from top_server.schemes import SCHEMES

CLIENTS = (10, 11, 12, 13, 14)
SETTLED = ((12, 10), (13,))
#: By groupings, of clients 0 to 4.
TWO_KINDS = np.array([(4.0, 0), (4, 0), (4, 0), (-4, 0), (-5, 0)])
EVIDENCE = {
    "fedcluster": {"gram": TWO_KINDS @ TWO_KINDS.T * 1e4},
    "fedcollab": {"distances": 1.0 - np.eye(5)},
    "kmeans": {"gram": TWO_KINDS @ TWO_KINDS.T},
    "hcct": {"gram": TWO_KINDS @ TWO_KINDS.T},
    "single": {},
}


def request(settled: tuple[tuple[int, ...], ...] = SETTLED, **changes: Any) -> GroupingRequest:
    """Clients 11 and 14 are new; both are nearest to 13."""
    distances = np.ones((5, 5))
    distances[1, 3] = distances[3, 1] = distances[4, 3] = distances[3, 4] = distances[1, 4] = distances[4, 1] = 0.01
    gram = np.diag([4.0, 1, 4, 1, 1])
    fields: dict[str, Any] = {"matrices": {"distances": distances, "gram": gram}, **changes}
    return GroupingRequest(2, 1, 0, CLIENTS, np.full(5, 100), settled=settled, **fields)


def registered(server: grpc.aio.Server) -> None:
    grouping_pb2_grpc.add_GroupingServiceServicer_to_server(GroupingServicer(), server)


class Listens(grouping_pb2_grpc.GroupingServiceServicer):
    """Keeps the question."""

    asked: grouping_pb2.AssignQuestion

    async def Assign(self, requests: Any, context: Any) -> grouping_pb2.AssignResponse:  # noqa: N802
        parts = [part async for part in requests]
        self.asked = parts[0].question
        return grouping_pb2.AssignResponse(groups=[grouping_pb2.ClientGroup(clients=CLIENTS)])


@pytest.mark.parametrize("settled", [(), SETTLED])
async def test_the_groups_of_the_round_before_are_told_in_their_order(settled: tuple[tuple[int, ...], ...]) -> None:
    listens = Listens()

    def register(server: grpc.aio.Server) -> None:
        grouping_pb2_grpc.add_GroupingServiceServicer_to_server(listens, server)

    async with serving(register) as served:
        await assign(served.channel, served.address, "fedcollab", request(settled))
    assert tuple(tuple(group.clients) for group in listens.asked.settled) == settled


@pytest.mark.parametrize("name", ["fedcollab", "fedcluster"])
async def test_groupings_that_go_on_from_settled_groups_do_so_over_the_wire(name: str) -> None:
    asked = request()
    async with serving(registered) as served:
        plan = await assign(served.channel, served.address, name, asked)
        fresh = await assign(served.channel, served.address, name, request(()))
    assert plan.groups == GROUPINGS[name](asked).groups
    assert plan.groups != fresh.groups
    if name == "fedcollab":
        assert plan.groups == ((10, 12), (11, 13, 14))


@pytest.mark.parametrize("scheme", [name for name, row in SCHEMES.items() if row.grouping in EVIDENCE])
async def test_an_absent_client_keeps_its_group_with_a_grouping_service_as_without(scheme: str) -> None:
    """In its group's place, and as far behind."""
    async with serving(registered) as served, Channels() as channels:
        found = []
        for grouping in (None, f"grpc://{served.address}"):
            config = RunConfig(scheme=scheme, grouping=grouping)
            row = choose(config)
            plans = []
            async with stage("none", 5, scheme=scheme) as s:
                options = {"grouping": {"min_round": "0"}} if scheme == "fedcluster" else {}
                assign = assign_by(row, channels)
                s.context = dataclasses.replace(
                    s.context, scheme=dataclasses.replace(row, options=options), assign=assign
                )
                for number, clients in enumerate([(0, 1, 2, 3, 4), (0, 1, 2, 4), (0, 1, 2, 3, 4)], 1):
                    evidence = Evidence((0, 1, 2, 3, 4), pairwise=EVIDENCE[row.grouping]).of(clients)
                    plans.append((await form_teams(s.context, s.progress, number, evidence)).plan)
            found.append((plans, row.continues, row.lasts))
        assert found[0] == found[1]
        assert (3 in {client for group in found[0][0][1].groups for client in group}) == found[0][1]


@pytest.mark.parametrize(("rate", "splits"), [(1.0, True), (0.01, False)])
async def test_what_updates_were_divided_by_goes_over_the_wire(rate: float, splits: bool) -> None:
    updates = np.array([(2.0, 0), (2, 0), (2, 0), (-2, 0), (-3, 0)])
    gram = {"gram": updates @ updates.T}
    asked = request((CLIENTS,), matrices=gram, options={"min_round": "0"}, learning_rate=rate)
    async with serving(registered) as served:
        plan = await assign(served.channel, served.address, "fedcluster", asked)
    assert plan.groups == GROUPINGS["fedcluster"](asked).groups == (((10, 11, 12), (13, 14)) if splits else (CLIENTS,))


@pytest.mark.parametrize("settled", [[[10, 99]], [[10], [10]], [[10, 10]], [[]], [[10], []]])
async def test_settled_groups_that_cannot_be_are_refused(settled: list[list[int]]) -> None:
    question = grouping_pb2.AssignQuestion(
        grouping="single",
        round=1,
        groups=1,
        clients=CLIENTS,
        sizes=[1] * 5,
        settled=[grouping_pb2.ClientGroup(clients=group) for group in settled],
    )
    async with serving(registered) as served:
        stub = grouping_pb2_grpc.GroupingServiceStub(served.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Assign(iter([grouping_pb2.AssignRequest(question=question)]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the settled groups must be disjoint" in (caught.value.details() or "")
