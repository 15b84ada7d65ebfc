"""A model per cluster, kept whether anybody chose it or not (IFCA, section 4; FeSEM, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedgsp.messages import Failure
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import choices
from top_server.merging.base import Merging, Starts
from top_server.models import Held, cluster_slot

if TYPE_CHECKING:
    from top_server.groups.task import GroupOutcome
    from top_server.run import Run


class Clusters(Merging):
    """A group is those who chose one cluster: it starts from that cluster's model, and its mean replaces it."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._chosen: dict[int, int] = {}

    def save(self) -> dict[str, Any]:
        """The choices."""
        return {"chosen": self._chosen}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The choices."""
        self._chosen = {int(client): cluster for client, cluster in saved["chosen"].items()}

    async def begin(self, round_number: int, evidence: Evidence) -> None:
        """Notes each client's choice."""
        chosen = choices(evidence.matrices["costs"]).tolist()
        self._chosen.update(zip(evidence.clients, chosen, strict=True))

    def start(self, group: Iterable[int]) -> Starts:
        """The model of the cluster that the members chose."""
        return ((self.of(next(iter(group))), 1.0),)

    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """The group's mean is the cluster's model."""
        weights = await self.run.take(outcome)
        if isinstance(weights, Failure):
            return weights
        cluster = cluster_slot(self._chosen[outcome.task.clients[0]])
        self.run.models.put([cluster], self.group_model_id(round_number, outcome.task.number), weights)
        return None

    def of(self, client: int) -> Held:
        """The model of the cluster that it chose last."""
        return self.run.models[cluster_slot(self._chosen.get(client, 0))]

    def untrained(self, client: int) -> str:
        """A cluster may be chosen and all of its members fail."""
        if client not in self._chosen:
            return "it chose no cluster"
        cluster = self._chosen[client]
        slot = cluster_slot(cluster)
        initial = self.run.models[slot].ref.id == self.run.initial_id(slot)
        return f"nobody trained cluster {cluster}, which it chose" if initial else ""


class Centres(Clusters):
    """The same, but a group starts from the plain mean of what its members trained last: from its centre.

    A member without a model of its own counts in no centre; where nobody has one, the cluster's model is the start.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: Cluster -> the ids of the members' models that its own model is the mean of.
        self._behind: dict[int, list[str]] = {}

    def save(self) -> dict[str, Any]:
        """The choices, and what the clusters' models are the means of."""
        return {**super().save(), "behind": self._behind}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same."""
        super().restore(saved)
        self._behind = {int(cluster): ids for cluster, ids in saved["behind"].items()}

    def start(self, group: Iterable[int]) -> Starts:
        """The members' own models, which stay with them; none travels if their mean is the cluster's model."""
        members = tuple(group)
        local = self.run.local_models
        own = [local[client] for client in members if client in local and self.run.membership.member(client)]
        if not own or [held.ref.id for held in own] == self._behind.get(self._chosen[members[0]]):
            return super().start(members)
        return tuple((held, 1.0) for held in own)

    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """The mean of what the members trained is the cluster's model."""
        failure = await super().take(round_number, outcome)
        if failure is None:
            trained = outcome.own_models
            self._behind[self._chosen[outcome.task.clients[0]]] = [
                trained[client].ref.id for client in sorted(trained)
            ]
        return failure
