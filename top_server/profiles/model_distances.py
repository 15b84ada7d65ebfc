"""Distances between the clusters' models and the models that clients trained last (FeSEM, section 6)."""

from __future__ import annotations

import numpy as np

from fedgsp.seeds import stream
from top_server.evidence import Evidence
from top_server.groups.initial import make_initial
from top_server.models import cluster_slot
from top_server.profiles.base import Profile
from top_server.profiles.options import ModelOptions


class ModelDistances(Profile[ModelOptions]):
    """The models begin with different weights; a client without a model of its own draws one at random."""

    async def gather(self, round_number: int) -> Evidence:
        """Matrix `costs` (N, models): squared distances. Without a model of its own a client has 0 for one, else 1."""
        context = self.context
        count = self.options.models
        clients = tuple(context.membership.clients)
        own = {client: held for client, held in self.progress.local_models.items() if client in clients}
        columns: list[dict[int, float]] = []
        for cluster in range(count):
            slot = cluster_slot(cluster)
            if slot not in context.models:
                await make_initial(context, self.progress, slot, cluster)
            start = ((context.models[slot], 1.0),)
            answers = await self.evaluate(round_number, "distance", own, start, own) if own else {}
            columns.append({client: answer.squared_distance for client, answer in answers.items()})
        rng = stream(context.config.seed, "model-distances", round_number)
        costs = (rng.integers(count, size=len(clients))[:, None] != np.arange(count)).astype(np.float64)
        without = []
        for row, client in enumerate(clients):
            if all(client in column for column in columns):
                costs[row] = [column[client] for column in columns]
            else:
                without.append(client)  # if it had a model, that is lost or out of reach
        return Evidence(clients, figures={"costs": costs}, retain=True, without_model=tuple(without))
