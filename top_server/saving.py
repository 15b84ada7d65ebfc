"""What of a run's models goes to disk, and when."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from pathlib import Path

from fedgsp.errors import RunError
from fedgsp.messages import Failure
from fedgsp.weights import Weights
from top_server.grouping.request import listed
from top_server.groups.task import GroupTask
from top_server.models import Held
from top_server.record.checkpoint import Checkpoints, Origin
from top_server.run import Run

logger = logging.getLogger(__name__)


async def save(run: Run, checkpoints: Checkpoints, number: int) -> dict[str, Path]:
    """After a round the models that this process holds; after the last one those of single clients too.

    A model that nobody trained is not saved: it is no result. Returns the file of each other, by the model's id.
    """
    last = number == run.config.rounds
    by_model: dict[Held, list[int]] = defaultdict(list)
    untrained: dict[int, str] = {}
    for client in run.merging.clients():
        if reason := run.merging.untrained(client):
            untrained[client] = reason
        else:
            by_model[run.merging.of(client)].append(client)
    shared = run.merging.shared
    if not by_model and shared:
        by_model[run.merging.of(0)] = []  # all clients have gone, and the model is there
    at_home = [held for held in by_model if held.client is not None]
    collected = await _collect(run, number, at_home) if last else {}
    saved: dict[str, Path] = {}
    for held, clients in by_model.items():
        weights = collected.get(held) if held.client is not None else await run.models.weights(held)
        if weights is None:
            continue
        label = "" if len(by_model) == 1 else f"group-{min(clients):04d}"
        origin = Origin(run.run_id, run.config.scheme, number, run.config.seed, () if shared else tuple(clients))
        for write in (checkpoints.write_round, checkpoints.write_final) if last else (checkpoints.write_round,):
            saved[held.ref.id] = await asyncio.to_thread(write, weights.arrays, origin, label)
    if last and by_model and not saved:
        raise RunError("no model could be saved", "see model_not_saved in events.jsonl for the reasons")
    await asyncio.to_thread(checkpoints.prune, saved.values(), last)
    if last and untrained:
        for client, reason in untrained.items():
            run.journal.record("model_not_saved", client=client, reason=reason)
        logger.warning("no trained model is saved for clients: %s", listed(untrained))
    return saved


async def _collect(run: Run, number: int, at_home: list[Held]) -> dict[Held, Weights]:
    """Models that stayed with their clients; raises RunError if one cannot be had."""
    by_client = {held.client: held for held in at_home if held.client is not None}
    if not by_client:
        return {}
    outcome = await run.survey(number, GroupTask(0, "collect", tuple(by_client), own_starts=by_client))
    found = {}
    for client, weights in outcome.models.items():
        if isinstance(weights, Failure):
            raise RunError(f"the model of client {client} cannot be saved: {weights}", "see the nodes' logs")
        found[by_client[client]] = weights
    for skipped in outcome.skipped:
        run.journal.record("model_not_saved", client=skipped.client, reason=str(skipped.failure))
    return found
