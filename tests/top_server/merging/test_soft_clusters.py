"""Overlapping clusters: every client in several (FLSC)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedgsp.messages import Failure, FailureCode
from fedgsp.seeds import stream
from tests.support.scripted import model
from tests.support.staged import Stage, stage
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.groups.planning import round_tasks
from top_server.models import cluster_slot
from top_server.teams import Teams

#: Clients 0 and 1 choose clusters 0 and 1, clients 2 and 3 clusters 1 and 2.
LOSSES = np.array([(1.0, 2.0, 3.0), (2.0, 1.0, 3.0), (3.0, 1.0, 2.0), (3.0, 2.0, 1.0)])
EVIDENCE = Evidence((0, 1, 2, 3), figures={"costs": LOSSES})


def with_clusters(s: Stage, *values: float) -> None:
    for cluster, value in enumerate(values):
        s.context.models.put([cluster_slot(cluster)], f"cluster {cluster}", model(value))


async def values(s: Stage) -> list[float]:
    return [await s.value(s.context.models[cluster_slot(cluster)]) for cluster in range(3)]


async def start_of(s: Stage, client: int) -> float:
    ((held, weight),) = s.start((client,))
    assert weight == 1.0
    return await s.value(held)


async def test_a_client_starts_from_the_plain_mean_of_its_clusters_and_counts_in_all_of_them_by_samples() -> None:
    async with stage("soft-clusters", options={"soft": "2"}) as s:
        with_clusters(s, 1.0, 2.0, 4.0)
        await s.begin(2, EVIDENCE)
        assert [await start_of(s, client) for client in range(4)] == [1.5, 1.5, 3.0, 3.0]
        # reported in another order than that of the clients, in which they are folded
        n, w = (10, 11, 12, 13), (0.1, 0.3, 0.7, -0.9)
        outcome = s.collected({client: w[client] for client in (3, 0, 2, 1)})
        assert await s.take(2, outcome) is None
        await s.finish(2)
        expected = [sum(n[c] * w[c] for c in group) / sum(n[c] for c in group) for group in ((0, 1), range(4), (2, 3))]
        assert await values(s) == expected
        assert [await s.value(s.of(client)) for client in range(4)] == list(w)
        assert len(s.store) == 1 + 3 + 4  # initial, clusters and what clients trained: no start is left over


async def test_in_the_first_round_clusters_are_drawn_at_random_and_distinct() -> None:
    async with stage("soft-clusters", options={"soft": "2"}, seed=5) as s:
        with_clusters(s, 1.0, 2.0, 4.0)
        await s.begin(1, EVIDENCE)
        rng = stream(5, "soft-clusters")
        drawn = [sorted(rng.choice(3, 2, replace=False).tolist()) for _ in range(4)]
        means = [sum((1.0, 2.0, 4.0)[cluster] for cluster in clusters) / 2 for clusters in drawn]
        assert [await start_of(s, client) for client in range(4)] == means
        assert means != [1.5, 1.5, 3.0, 3.0]


async def test_a_client_without_a_finite_loss_has_no_clusters_and_does_not_train() -> None:
    async with stage("soft-clusters", options={"soft": "2"}, scheme="flsc") as s:
        with_clusters(s, 1.0, 2.0, 4.0)
        costs = LOSSES.copy()
        costs[1] = float("nan")
        evidence = Evidence((0, 1, 2, 3), figures={"costs": costs})
        await s.begin(2, evidence)
        assert s.start((1,)) == ()
        teams = Teams(Plan(((0,), (1,), (2,), (3,)), ()), ((0,), (1,), (2,), (3,)))
        (task,) = round_tasks(s.context.scheme, s.merging, s.context.holdings({}), teams, evidence)
        assert sorted(task.own_starts) == [0, 2, 3]
        assert task.lacks(1, 11) == "when its group was planned, no model was known that it could start from"


async def test_a_cluster_that_nobody_chose_keeps_its_model() -> None:
    async with stage("soft-clusters", options={"soft": "1"}) as s:
        with_clusters(s, 1.0, 2.0, 4.0)
        await s.begin(2, Evidence((0, 1), figures={"costs": LOSSES[:2]}))
        await s.take(2, s.collected({0: 7.0, 1: 8.0}))
        await s.finish(2)
        assert await values(s) == [7.0, 8.0, 4.0]


async def test_a_model_that_did_not_come_counts_nowhere_and_before_anything_came_is_the_rounds_failure() -> None:
    async with stage("soft-clusters", options={"soft": "2"}) as s:
        with_clusters(s, 1.0, 2.0, 4.0)
        failure = Failure(FailureCode.CUT_SHORT, "half of it")
        cases: list[tuple[dict[int, Any], Failure | None]]
        cases = [({0: failure}, failure), ({0: failure, 1: model(8.0)}, None)]
        for models, expected in cases:
            await s.begin(2, EVIDENCE)
            whole = s.collected(dict.fromkeys(models, 8.0))
            assert await s.take(2, dataclasses.replace(whole, models=models)) == expected
        await s.finish(2)
        assert await values(s) == [8.0, 8.0, 4.0]


async def test_before_it_trained_a_client_has_the_first_clusters_model() -> None:
    async with stage("soft-clusters") as s:
        with_clusters(s, 1.0, 2.0)
        assert await s.value(s.of(3)) == 1.0


async def test_all_that_is_made_here_is_rounded_if_models_travel_so() -> None:
    async with stage("soft-clusters", options={"soft": "2"}, wire_dtype="bfloat16") as s:
        with_clusters(s, 1.0, 2.0, 4.0)
        await s.begin(2, EVIDENCE)
        made = [s.start((client,))[0][0] for client in range(4)]
        assert [s.context.models.weights(held).bfloat16 for held in made] == [True] * 4
        await s.take(2, s.collected(dict.fromkeys(range(4), 8.0)))
        await s.finish(2)
        made = [s.context.models[cluster_slot(cluster)] for cluster in range(3)]
        assert [s.context.models.weights(held).bfloat16 for held in made] == [True] * 3
