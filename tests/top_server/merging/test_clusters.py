"""A model per cluster; clients choose by loss (IFCA), or by how near it is (FeSEM)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from fedgsp.messages import ModelRef, Trained
from tests.support.scripted import model
from tests.support.staged import Stage, stage
from top_server.evidence import Evidence
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.models import Held, cluster_slot


def losses(*rows: tuple[float, ...]) -> Evidence:
    return Evidence(tuple(range(len(rows))), figures={"costs": np.array(rows)})


def with_clusters(s: Stage, *values: float) -> None:
    for cluster, value in enumerate(values):
        s.context.models.put([cluster_slot(cluster)], f"cluster {cluster}", model(value))


async def test_a_group_starts_from_the_cluster_that_its_members_chose_and_its_mean_replaces_it() -> None:
    async with stage("clusters") as s:
        with_clusters(s, 0.5, 3.0, 9.0)
        # quadratics at 0, 1.6, 1.8 and 4 with models at 0.5 and 3.0: as published
        await s.begin(1, losses((0.1, 4.5, 9), (0.6, 1, 9), (0.8, 0.7, 9), (6.1, 0.5, 9)))
        assert [await s.value(s.of(client)) for client in range(4)] == [0.5, 0.5, 3.0, 3.0]
        for group, value in (((0, 1), 0.7), ((2, 3), 2.8)):
            ((held, weight),) = s.start(group)
            assert (held, weight) == (s.of(group[0]), 1.0)
            assert await s.take(1, await s.trained(group, value, number=group[0])) is None
        await s.finish(1)
        assert [await s.value(s.context.models[cluster_slot(cluster)]) for cluster in range(3)] == [0.7, 2.8, 9.0]
        assert [await s.value(s.of(client)) for client in range(4)] == [0.7, 0.7, 2.8, 2.8]


async def test_a_client_that_did_not_answer_keeps_the_cluster_it_chose_last() -> None:
    async with stage("clusters") as s:
        with_clusters(s, 0.5, 3.0)
        assert await s.value(s.of(1)) == 0.5  # before it ever chose
        await s.begin(1, losses((1, 2), (2, 1)))
        await s.begin(2, losses((2, 1)))
        assert [await s.value(s.of(client)) for client in range(2)] == [3.0, 3.0]


async def test_a_client_without_a_finite_loss_chooses_no_cluster() -> None:
    nan, inf = float("nan"), float("inf")
    async with stage("clusters") as s:
        with_clusters(s, 0.5, 3.0)
        await s.begin(1, losses((nan, inf), (2, 1), (nan, 1)))
        assert s.untrained(0) == "it chose no cluster"
        assert [await s.value(s.of(client)) for client in (1, 2)] == [3.0, 3.0]
        await s.begin(2, losses((1, 2), (nan, nan), (1, 2)))
        assert [await s.value(s.of(client)) for client in range(3)] == [0.5, 3.0, 0.5]  # client 1 as before


async def test_a_model_is_trained_once_somebody_trained_the_cluster_that_its_client_chose() -> None:
    async with stage("clusters") as s:
        for cluster in range(2):
            slot = cluster_slot(cluster)
            s.context.models.put([slot], s.context.initial_id(slot), model(float(cluster)))
        assert s.untrained(0) == "it chose no cluster"
        await s.begin(1, losses((1, 2), (2, 1), (2, 1)))
        await s.take(1, await s.trained((1,), 5.0))
        # client 2 failed, client 0 chose a cluster that nobody trained, and client 3 did not answer
        assert [bool(s.untrained(client)) for client in range(4)] == [True, False, False, True]
        assert s.untrained(0) == "nobody trained cluster 0, which it chose"


# --- FeSEM: centres of what the members trained last


def trained_last(s: Stage, *clients: int) -> dict[int, Held]:
    """Models that stayed with these clients."""
    local = {client: Held(model(0.0).ref(f"of {client}"), client) for client in clients}
    s.progress.local_models.update(local)
    return local


async def test_a_centre_is_the_plain_mean_of_its_members_own_models() -> None:
    async with stage("centres") as s:
        with_clusters(s, 1.0, 4.0)
        local = trained_last(s, 0, 1, 2, 3)
        # own models at (0, 0), (0.2, 0), (5, 5) and (5.2, 5), centres at (1, 1) and (4, 4): as published
        own, centres = np.array([(0, 0), (0.2, 0), (5, 5), (5.2, 5)]), np.array([(1, 1), (4, 4)])
        apart = ((own[:, None] - centres) ** 2).sum(axis=2)
        nearest = GROUPINGS["fesem"](GroupingRequest(2, 2, 0, (0, 1, 2, 3), np.full(4, 5), matrices={"costs": apart}))
        assert nearest.groups == ((0, 1), (2, 3))
        await s.begin(2, losses(*apart))
        for group in nearest.groups:
            # equally weighted, so (0.1, 0) and (5.1, 5)
            assert s.start(group) == tuple((local[client], 1.0) for client in group)


async def test_members_without_a_model_of_their_own_or_that_are_away_count_in_no_centre() -> None:
    async with stage("centres", clients=3) as s:
        with_clusters(s, 1.0, 4.0)
        await s.begin(2, losses((0, 1), (0, 1), (0, 1)))
        assert s.start((0, 1, 2)) == ((s.context.models[cluster_slot(0)], 1.0),)  # nobody has one
        local = trained_last(s, 1, 3)
        assert s.start((0, 1, 2, 3)) == ((local[1], 1.0),)


async def test_no_model_travels_for_a_centre_that_the_top_server_has() -> None:
    async with stage("centres") as s:
        with_clusters(s, 1.0, 4.0)
        await s.begin(1, losses((0, 1), (0, 1), (1, 0), (1, 0)))
        for group in ((0, 1), (2, 3)):
            outcome = await s.trained(group, 7.0, number=group[0])
            assert await s.take(1, outcome) is None
            s.progress.local_models.update(outcome.own_models)
        s.merging.restore(json.loads(json.dumps(s.merging.state()[0])), {})  # as after a resume
        assert s.start((0, 1)) == ((s.context.models[cluster_slot(0)], 1.0),)
        await s.begin(2, losses((0, 1), (1, 0), (1, 0), (1, 0)))  # client 1 moves
        local = s.progress.local_models
        assert s.start((0,)) == ((local[0], 1.0),)
        assert s.start((1, 2, 3)) == tuple((local[client], 1.0) for client in (1, 2, 3))


async def test_members_that_come_back_with_other_models_make_another_centre() -> None:
    async with stage("centres") as s:
        with_clusters(s, 1.0, 4.0)
        for number, costs in enumerate([(0, 1), (1, 0)], 1):
            await s.begin(number, losses(costs, costs))
            outcome = await s.trained((0, 1), 7.0)
            done = [replace(one, result=Trained(ModelRef(f"{number}/{one.client}"), 9)) for one in outcome.done]
            outcome = replace(outcome, done=tuple(done))
            assert await s.take(number, outcome) is None
            s.progress.local_models.update(outcome.own_models)
        await s.begin(3, losses((0, 1), (0, 1)))
        assert s.start((0, 1)) == tuple((s.progress.local_models[client], 1.0) for client in (0, 1))
