"""Which models of a run are saved as checkpoints, and after which round. `model_files` writes the files."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from pathlib import Path

from fedgsp.errors import RunError
from fedgsp.messages import Failure, Results
from fedgsp.weights import Weights
from top_server.grouping.request import listed
from top_server.groups.survey import survey
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.models import Held
from top_server.progress import Progress
from top_server.record.events.rounds import ModelNotSaved
from top_server.record.model_files import ModelFiles, Origin
from top_server.run import RunContext

logger = logging.getLogger(__name__)


async def save(
    context: RunContext, progress: Progress, merging: Merging, files: ModelFiles, number: int
) -> dict[str, Path]:
    """Saves the models held here; after the last round also the models that nodes hold for their clients.

    A model that nobody trained is not saved. Returns the file of each saved model by the id of the model.
    """
    holdings = context.holdings(progress.local_models)
    slots = holdings.slots
    last = number == context.config.rounds
    by_model: dict[Held, list[int]] = defaultdict(list)
    untrained: dict[int, str] = {}
    for client in merging.clients(holdings):
        if reason := merging.untrained(client, slots):
            untrained[client] = reason
        else:
            by_model[merging.of(client, slots)].append(client)
    shared = merging.shared
    if not by_model and shared:
        by_model[merging.of(0, slots)] = []  # all clients have gone, and the model is there
    at_home = [held for held in by_model if held.client is not None]
    collected = await _collect(context, progress, number, at_home) if last else {}
    saved: dict[str, Path] = {}
    for held, clients in by_model.items():
        weights = collected.get(held) if held.client is not None else context.models.weights(held)
        if weights is None:
            continue
        label = "" if len(by_model) == 1 else f"group-{min(clients):04d}"
        origin = Origin(
            context.run_id, context.config.scheme, number, context.config.seed, () if shared else tuple(clients)
        )
        for write in (files.write_round, files.write_final) if last else (files.write_round,):
            saved[held.ref.id] = await asyncio.to_thread(write, weights.arrays, origin, label)
    if last and by_model and not saved:
        raise RunError("no model could be saved", "see model_not_saved in events.jsonl for the reasons")
    await asyncio.to_thread(files.prune, saved.values(), last)
    if last and untrained:
        for client, reason in untrained.items():
            context.journal.record(ModelNotSaved(client=client, reason=reason))
        logger.warning("no trained model is saved for clients: %s", listed(untrained))
    return saved


async def _collect(context: RunContext, progress: Progress, number: int, at_home: list[Held]) -> dict[Held, Weights]:
    """The models that nodes hold for their clients; raises RunError if a node sends one that cannot be used."""
    by_client = {held.client: held for held in at_home if held.client is not None}
    if not by_client:
        return {}
    task = GroupTask(0, "collect", tuple(by_client), own_starts=by_client, results=Results.COLLECTED)
    outcome = await survey(context, progress, number, task)
    found = {}
    for client, weights in outcome.models.items():
        if isinstance(weights, Failure):
            raise RunError(f"the model of client {client} cannot be saved: {weights}", "see the nodes' logs")
        found[by_client[client]] = weights
    for skipped in outcome.skipped:
        context.journal.record(ModelNotSaved(client=skipped.client, reason=str(skipped.failure)))
    return found
