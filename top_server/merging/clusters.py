"""A model per cluster, kept whether anybody chose it or not (IFCA, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedgsp.messages import Failure
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import choices
from top_server.merging.base import Merging, Starts
from top_server.models import Held, cluster_slot

if TYPE_CHECKING:
    from top_server.group_run import GroupOutcome
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
