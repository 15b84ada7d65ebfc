"""Clusters that overlap: every client starts from the mean of a few, and counts in all of them (FLSC, section 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedgsp.aggregation import Mean
from fedgsp.messages import Failure, Results, Trained
from fedgsp.seeds import stream
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import soft_choices
from top_server.grouping.options import Options
from top_server.merging.base import Merging, Starts
from top_server.models import Held, client_slot, cluster_slot

if TYPE_CHECKING:
    from top_server.groups.task import GroupOutcome


class SoftClusters(Merging):
    """A client is evaluated on what it trained itself, which is not sent back to it."""

    alone: ClassVar[Results | None] = Results.COLLECTED
    options: ClassVar[tuple[str, ...]] = ("soft",)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> int:
        """How many clusters a client counts in; raises ConfigError."""
        return Options("soft-clusters", given, cls.options, "merge").integer("soft", 2)

    async def begin(self, round_number: int, evidence: Evidence) -> None:
        """Each client's clusters: those of smallest loss, drawn at random in the first round; and their means."""
        losses = evidence.matrices["costs"]
        count = self.read(self.run.options["merge"])
        chosen = soft_choices(losses, count)
        if round_number == 1:
            rng = stream(self.run.config.seed, "soft-clusters")
            chosen = np.sort([rng.choice(losses.shape[1], count, replace=False) for _ in evidence.clients], axis=1)
        self._chosen = {c: tuple(row) for c, row in zip(evidence.clients, chosen.tolist(), strict=True)}
        self._means = [Mean(weighted=True) for _ in range(losses.shape[1])]
        self._folded: set[int] = set()
        for clusters in sorted(set(self._chosen.values())):
            await self._make_start(round_number, clusters)

    def start(self, group: Iterable[int]) -> Starts:
        """The plain mean of its clusters' models."""
        (client,) = group
        return ((self.run.models[_start_slot(self._chosen[client])], 1.0),)

    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """Every client's model counts in all of its clusters, by its samples, in the order of the clients."""
        failure = outcome.result if isinstance(outcome.result, Failure) else None
        for done in sorted(outcome.done, key=lambda done: done.client):
            if not isinstance(done.result, Trained) or done.result.ref is None:
                continue
            weights = outcome.models[done.client]
            if isinstance(weights, Failure):
                failure = weights
                continue
            self.run.models.put([client_slot(done.client)], done.result.ref.id, weights)
            for cluster in self._chosen[done.client]:
                await asyncio.to_thread(self._means[cluster].fold, weights, done.result.samples)
                self._folded.add(cluster)
        return None if self._folded else failure

    async def finish(self, round_number: int) -> None:
        """Clusters that nobody chose keep their models."""
        for cluster in sorted(self._folded):
            merged = self.run.handed_on(self._means[cluster].result())
            self.run.models.put([cluster_slot(cluster)], self.group_model_id(round_number, f"c{cluster}"), merged)
        for clusters in set(self._chosen.values()):
            self.run.models.drop(_start_slot(clusters))

    def of(self, client: int) -> Held:
        """What it trained last; the first cluster's model before that."""
        slot = client_slot(client)
        return self.run.models[slot if slot in self.run.models else cluster_slot(0)]

    def untrained(self, client: int) -> str:
        """The first cluster's model is not one that it chose."""
        return "" if client_slot(client) in self.run.models else "it never trained"

    async def _make_start(self, round_number: int, clusters: tuple[int, ...]) -> None:
        mean = Mean(weighted=False)
        for cluster in clusters:
            weights = await self.run.models.weights(self.run.models[cluster_slot(cluster)])
            await asyncio.to_thread(mean.fold, weights)
        slot = _start_slot(clusters)
        made = self.run.handed_on(mean.result())
        self.run.models.put([slot], self.group_model_id(round_number, slot), made)


def _start_slot(clusters: tuple[int, ...]) -> str:
    return f"start {'+'.join(map(str, clusters))}"
