"""A model per cluster; clients choose by loss (IFCA)."""

from __future__ import annotations

import numpy as np
from support.scripted import model
from support.staged import Stage, stage

from top_server.evidence import Evidence
from top_server.models import cluster_slot


def losses(*rows: tuple[float, ...]) -> Evidence:
    return Evidence(tuple(range(len(rows))), matrices={"costs": np.array(rows)})


def with_clusters(s: Stage, *values: float) -> None:
    for cluster, value in enumerate(values):
        s.run.models.put([cluster_slot(cluster)], f"cluster {cluster}", model(value))


async def test_a_group_starts_from_the_cluster_that_its_members_chose_and_its_mean_replaces_it() -> None:
    async with stage("clusters") as s:
        with_clusters(s, 0.5, 3.0, 9.0)
        # quadratics at 0, 1.6, 1.8 and 4 with models at 0.5 and 3.0: as published
        await s.run.merging.begin(1, losses((0.1, 4.5, 9), (0.6, 1, 9), (0.8, 0.7, 9), (6.1, 0.5, 9)))
        assert [await s.value(s.run.merging.of(client)) for client in range(4)] == [0.5, 0.5, 3.0, 3.0]
        for group, value in (((0, 1), 0.7), ((2, 3), 2.8)):
            ((held, weight),) = s.run.merging.start(group)
            assert (held, weight) == (s.run.merging.of(group[0]), 1.0)
            assert await s.run.merging.take(1, await s.trained(group, value, number=group[0])) is None
        await s.run.merging.finish(1)
        assert [await s.value(s.run.models[cluster_slot(cluster)]) for cluster in range(3)] == [0.7, 2.8, 9.0]
        assert [await s.value(s.run.merging.of(client)) for client in range(4)] == [0.7, 0.7, 2.8, 2.8]


async def test_a_client_that_did_not_answer_keeps_the_cluster_it_chose_last() -> None:
    async with stage("clusters") as s:
        with_clusters(s, 0.5, 3.0)
        assert await s.value(s.run.merging.of(1)) == 0.5  # before it ever chose
        await s.run.merging.begin(1, losses((1, 2), (2, 1)))
        await s.run.merging.begin(2, losses((2, 1)))
        assert [await s.value(s.run.merging.of(client)) for client in range(2)] == [3.0, 3.0]
