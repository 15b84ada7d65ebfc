"""Models that clients train alone before the first round, compared pairwise (one-shot k-means, section 6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from fedgsp.messages import Results
from fedgsp.updates import trainable
from fedgsp.weights import Weights
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.models import Held
from top_server.profiles.options import PriorOptions
from top_server.profiles.priors import Priors
from top_server.progress import Progress
from top_server.record.directory import RunDirectory
from top_server.reveals.gram import UpdateSpool
from top_server.run import RunContext


class PriorModels(Priors):
    """Keeps the model that each client trained alone. The model comes here once, and stays until the run is over."""

    def __init__(self, context: RunContext, progress: Progress, merging: Merging, options: PriorOptions) -> None:
        super().__init__(context, progress, merging, options)
        assert context.config.run_dir is not None
        self._gram: Evidence | None = None
        self._spool = UpdateSpool(RunDirectory(context.config.run_dir).path)

    def write(self, folder: Path) -> None:
        """Writes the prior models."""
        self._spool.save(folder)

    def load(self, folder: Path) -> None:
        """The same."""
        self._spool.load(folder)

    async def gather(self, round_number: int) -> Evidence:
        """Matrix `gram` (N, N): inner products of the clients' trainable weights; rows of NaN where these are lost."""
        clients = await self.train_priors(round_number)
        unknown = {client: self.priors[client] for client in clients if client not in self._spool.clients}
        if unknown:
            await self._collect(round_number, unknown)
        for client in set(unknown) - set(self._spool.clients):
            self.priors.pop(client)  # if it was lost with its node, the client trains another one
        if unknown or self._gram is None or self._gram.clients != clients:
            gram = await asyncio.to_thread(self._spool.gram, clients)
            self._gram = Evidence(clients, pairwise={"gram": gram})
        return self._gram

    def close(self) -> None:
        """Gives back the spool's memory and disk."""
        self._spool.close()

    async def _collect(self, round_number: int, held: dict[int, Held]) -> None:
        task = GroupTask(0, "collect", tuple(held), own_starts=held, results=Results.COLLECTED)
        outcome = await self.ask(round_number, task)
        for client, weights in outcome.models.items():
            if isinstance(weights, Weights):
                parts = [weights.arrays[spec.name].reshape(-1) for spec in trainable(weights.tensors)]
                vector = np.concatenate(parts).astype(np.float32)
                await asyncio.to_thread(self._spool.put, client, vector)
