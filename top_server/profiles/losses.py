"""Training loss of every cluster's model on each client (IFCA and FLSC, section 4)."""

from __future__ import annotations

import numpy as np

from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import choices
from top_server.groups.initial import make_initial
from top_server.models import cluster_slot
from top_server.profiles.base import Profile
from top_server.profiles.options import LossOptions
from top_server.record.events.evidence import ClustersChosen


class Losses(Profile[LossOptions]):
    """The models begin with different weights: with equal weights all clients would choose the first model.

    The result depends much on these weights, and IFCA's authors start several times. Event `clusters_chosen` has the
    training loss, by which restarts can be compared without the test parts.
    """

    async def gather(self, round_number: int) -> Evidence:
        """Matrix `costs` (N, models) of mean losses, of the clients that evaluated all models on training samples."""
        context = self.context
        count, restart = self.options.models, self.options.restart
        hosted = context.membership.clients
        everyone = tuple(hosted)
        losses: list[dict[int, float]] = []
        for cluster in range(count):
            slot = cluster_slot(cluster)
            if slot not in context.models:
                await make_initial(context, self.progress, slot, restart * count + cluster)
            start = ((context.models[slot], 1.0),)
            answers = await self.evaluate(round_number, "evaluate-training", everyone, start)
            losses.append({c: answer.loss_sum / answer.samples for c, answer in answers.items()})
        able = [client for client in everyone if hosted[client].train_samples]
        clients = tuple(client for client in able if all(client in column for column in losses))
        rows = [[column[client] for column in losses] for client in clients]
        costs = np.array(rows).reshape(-1, count)
        if clients:
            chosen = choices(costs)
            least = costs[np.arange(len(costs)), chosen]
            known = np.isfinite(least)  # a client without a finite loss is in no group
            sizes = np.array([hosted[client].train_samples for client in clients])
            context.journal.record(
                ClustersChosen(
                    round=round_number,
                    clients=np.bincount(chosen[known], minlength=count).tolist(),
                    train_loss=np.average(least[known], weights=sizes[known]) if known.any() else None,
                )
            )
        return Evidence(clients, figures={"costs": costs})
