"""Training loss of every cluster's model on each client (IFCA and FLSC, section 4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from top_server.evidence import Evidence
from top_server.grouping.options import Options
from top_server.models import cluster_slot
from top_server.profiles.base import Profile, evaluate

#: Clusters unless option `models` says otherwise.
DEFAULT_MODELS = 4


class Losses(Profile):
    """The models begin with different weights; equal ones would make everybody choose the first."""

    options = ("models",)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> int:
        """The number of models."""
        return Options("losses", given, cls.options, "profile").integer("models", DEFAULT_MODELS)

    async def gather(self, round_number: int) -> Evidence:
        """A matrix (N, models); clients that could not judge all models are left out."""
        run = self.run
        count = self.read(run.options["profile"])
        everyone = tuple(run.membership.clients)
        losses: list[dict[int, float]] = []
        for cluster in range(count):
            slot = cluster_slot(cluster)
            if slot not in run.models:
                await run.make_initial(slot, cluster)
            answers = await evaluate(run, round_number, "evaluate-training", everyone, ((run.models[slot], 1.0),))
            losses.append({c: answer.loss_sum / answer.samples for c, answer in answers.items() if answer.samples})
        clients = tuple(client for client in everyone if all(client in column for column in losses))
        rows = [[column[client] for column in losses] for client in clients]
        return Evidence(clients, matrices={"costs": np.array(rows).reshape(-1, count)})
