"""A model for each cluster. It is kept also in rounds in which no client chose it (IFCA, sec. 4; FeSEM, sec. 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.weights import Weights
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import choices
from top_server.merging.base import GroupModel, MergeSettings, Merging, Starts, State
from top_server.models import Changes, Held, Holdings, Made, cluster_slot


class Clusters(Merging):
    """The members of a group chose the same cluster: the group starts from its model, and its mean replaces it."""

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings)
        self._chosen: dict[int, int] = {}

    def state(self) -> State:
        """The cluster that each client chose."""
        return {"chosen": self._chosen}, {}

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """The same."""
        self._chosen = {int(client): cluster for client, cluster in saved["chosen"].items()}

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Notes the cluster that each client chose."""
        chosen = choices(evidence.matrices["costs"]).tolist()
        self._chosen.update(zip(evidence.clients, chosen, strict=True))
        return {}

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The model of the cluster that the members chose."""
        return ((self.of(next(iter(group)), holdings.slots), 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The model of the group becomes that of the cluster."""
        assert group.weights is not None
        made = Made(self.model_id(round_number, group.number), group.weights)
        return {cluster_slot(self._chosen[group.clients[0]]): made}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The model of the cluster that the client chose last."""
        return slots[cluster_slot(self._chosen.get(client, 0))]

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """The client chose no cluster, or all members of its cluster have failed so far."""
        if client not in self._chosen:
            return "it chose no cluster"
        cluster = self._chosen[client]
        slot = cluster_slot(cluster)
        initial = slots[slot].ref.id == self.initial_id(slot)
        return f"nobody trained cluster {cluster}, which it chose" if initial else ""


class Centres(Clusters):
    """Like `Clusters`, but a group starts from its centre: the plain mean of the models that its members trained last.

    A member that has no model of its own is left out of the mean. If no member has one, the group starts from the
    model of the cluster.
    """

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings)
        #: Cluster -> the ids of the members' models whose mean is the model of the cluster.
        self._behind: dict[int, list[str]] = {}

    def state(self) -> State:
        """The cluster that each client chose, and the members' models of which each cluster's model is the mean."""
        saved, tensors = super().state()
        return {**saved, "behind": self._behind}, tensors

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """The same."""
        super().restore(saved, tensors)
        self._behind = {int(cluster): ids for cluster, ids in saved["behind"].items()}

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The members' own models, which stay on their nodes; or the cluster's model if it is the mean of these."""
        members = tuple(group)
        local = holdings.local_models
        own = [local[client] for client in members if client in local and client in holdings.samples]
        if not own or [held.ref.id for held in own] == self._behind.get(self._chosen[members[0]]):
            return super().start(members, holdings)
        return tuple((held, 1.0) for held in own)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The mean of what the members trained becomes the model of the cluster."""
        self._behind[self._chosen[group.clients[0]]] = [one.held.ref.id for one in group.members.values()]
        return super().fold(round_number, group)
