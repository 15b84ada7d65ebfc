"""Clusters that overlap: a client starts from the mean of a few clusters' models, and its result counts in each.

This is the merge of FLSC (section 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgsp.averages import Mean
from fedgsp.messages import Results
from fedgsp.seeds import stream
from fedgsp.settings.fields import setting
from fedgsp.weights import Weights
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import soft_choices
from top_server.merging.base import GroupModel, MergeSettings, Merging, Starts
from top_server.models import Changes, Held, Holdings, Made, client_slot, cluster_slot


@dataclass(frozen=True, slots=True)
class SoftOptions:
    """Options of merge `soft-clusters`."""

    soft: int = setting(2, "number of clusters that a client counts in", least=1)


class SoftClusters(Merging):
    """A client is evaluated on the model that it trained itself; its clusters' models are not sent back to it."""

    alone: ClassVar[Results | None] = Results.COLLECTED

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings)
        self._count: int = settings.options.soft
        self._chosen: dict[int, tuple[int, ...]] = {}
        #: Cluster -> the mean of the models folded so far, for the clusters in which a model was folded.
        self._means: dict[int, Mean] = {}

    def reads(self, evidence: Evidence) -> Iterable[str]:
        """The models of all clusters."""
        return map(cluster_slot, range(evidence.matrices["costs"].shape[1]))

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Chooses each client's clusters, those of smallest loss, or at random in round 1; makes the starts."""
        losses = evidence.matrices["costs"]
        chosen = soft_choices(losses, self._count)
        if round_number == 1:
            rng = stream(self.settings.seed, "soft-clusters")
            drawn = [rng.choice(losses.shape[1], self._count, replace=False) for _ in evidence.clients]
            chosen = np.sort(drawn, axis=1)
        self._chosen = {c: tuple(row) for c, row in zip(evidence.clients, chosen.tolist(), strict=True)}
        self._means = {}
        starts: dict[str, Made] = {}
        for clusters in sorted(set(self._chosen.values())):
            mean = Mean(weighted=False)
            for cluster in clusters:
                mean.fold(weights[cluster_slot(cluster)])
            slot = _start_slot(clusters)
            starts[slot] = Made(self.model_id(round_number, slot), mean.result())
        return starts

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The plain mean of the client's clusters."""
        (client,) = group
        return ((holdings.slots[_start_slot(self._chosen[client])], 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The model of every client counts in all of its clusters, by its samples, in the order of the clients."""
        changes: dict[str, Made] = {}
        for client, own in group.members.items():
            assert own.weights is not None
            for cluster in self._chosen[client]:
                self._means.setdefault(cluster, Mean(weighted=True)).fold(own.weights, own.samples)
            changes[client_slot(client)] = Made(own.held.ref.id, own.weights)
        return changes

    def finish(self, round_number: int) -> Changes:
        """A cluster that no client chose keeps its model."""
        merged = {
            cluster_slot(cluster): Made(self.model_id(round_number, f"c{cluster}"), mean.result())
            for cluster, mean in sorted(self._means.items())
        }
        self._means = {}
        return {**merged, **dict.fromkeys(map(_start_slot, self._chosen.values()))}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The model that the client trained last; before that, the model of the first cluster."""
        return slots.get(client_slot(client)) or slots[cluster_slot(0)]

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """Before it trained, a client would use the first cluster's model, which it did not choose."""
        return "" if client_slot(client) in slots else "it never trained"


def _start_slot(clusters: tuple[int, ...]) -> str:
    return f"start {'+'.join(map(str, clusters))}"
