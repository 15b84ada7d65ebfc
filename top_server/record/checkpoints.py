"""Which models of a run are saved as checkpoints, and after which round. `model_files` writes the files."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, Results
from fedgsp.settings.run_files import ALL, BEST
from fedgsp.tensors.relayed_state import without_state
from fedgsp.tensors.weights import Weights
from top_server.grouping.request import listed
from top_server.groups.lost import LOST
from top_server.groups.run import survey
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.models import Held
from top_server.progress import Progress
from top_server.record import model_files
from top_server.record.events.rounds import ModelNotSaved
from top_server.record.room import waiting_for_room
from top_server.run import RunContext

logger = logging.getLogger(__name__)

#: How the names of files begin: of the round with the best validation score, and of the last round.
_BEST, _FINAL = "best", "final"
#: How often models are collected. A manager that was full may have room again: it has let the first models go.
_TRIES = 2


async def save(
    context: RunContext, progress: Progress, merging: Merging, folder: Path, number: int, last: bool
) -> dict[str, Path]:
    """Saves the models held here, and those that nodes hold for their clients if the files of this round stay.

    They stay after the last and the best round, and after every round with `--keep-models all`. A model that nobody
    trained is not saved, and no state of an optimiser. Returns the files of models that are saved whole, by the ids of
    the models.
    """
    config, holdings = context.config, context.holdings(progress.local_models)
    by_model: dict[Held, list[int]] = defaultdict(list)
    untrained: dict[int, str] = {}
    for client in merging.clients(holdings):
        if reason := merging.untrained(client, holdings.slots):
            untrained[client] = reason
        else:
            by_model[merging.of(client, holdings.slots)].append(client)
    if not by_model and merging.shared:
        by_model[merging.of(0, holdings.slots)] = []  # all clients have gone, and the model is there
    best = config.keep_models == BEST and progress.best.round == number
    names = [f"round-{number:04d}", *([_BEST] if best else []), *([_FINAL] if last else [])]
    stays = last or best or config.keep_models == ALL
    collected, broken_off = await _collect(context, progress, number, by_model, last) if stays else ({}, False)
    if best and broken_off and await asyncio.to_thread(_has, folder, _BEST):
        names.remove(_BEST)  # the models of one round belong together
        logger.warning("round=%d models are missing: the files of the best round before it stay", number)
    files: dict[Held, Path] = {}
    written: set[Path] = set()
    whole: dict[str, Path] = {}
    for held, clients in by_model.items():
        weights = collected.get(held) if held.client is not None else context.models.weights(held)
        if weights is None:
            continue
        label = "" if len(by_model) == 1 else f"-group-{min(clients):04d}"
        origin = model_files.Origin(
            context.run_id, config.scheme, number, config.seed, () if merging.shared else tuple(clients)
        )
        model = without_state(weights.tensors)
        arrays = {spec.name: weights.arrays[spec.name] for spec in model}
        for name in names:
            files[held] = folder / f"{name}{label}.safetensors"
            written.add(files[held])
            await asyncio.to_thread(waiting_for_room(model_files.save), files[held], arrays, origin)
        if len(model) == len(weights.tensors):
            whole[held.ref.id] = files[held]
    if last and by_model and not files:
        raise RunError("no model could be saved", "see model_not_saved in events.jsonl for the reasons")
    if config.keep_models != ALL and files:
        newest = set() if last else written  # after the last round they have other names
        await asyncio.to_thread(_prune, folder, "round-*.safetensors", newest)
    for name in names[1:]:  # there may have been other groups before
        await asyncio.to_thread(_prune, folder, f"{name}*.safetensors", written)
    if last and untrained:
        for client, reason in untrained.items():
            context.journal.record(ModelNotSaved(client=client, reason=reason))
        logger.warning("no trained model is saved for clients: %s", listed(untrained))
    return whole


def _has(folder: Path, name: str) -> bool:
    return any(folder.glob(f"{name}*.safetensors"))


def _prune(folder: Path, pattern: str, newest: Collection[Path]) -> None:
    for path in folder.glob(pattern):
        if path not in newest:
            path.unlink(missing_ok=True)


async def _collect(
    context: RunContext, progress: Progress, number: int, models: Iterable[Held], last: bool
) -> tuple[dict[Held, Weights], bool]:
    """The models that nodes hold for their clients, and whether some were not even asked for.

    If the question itself fails, or a transfer breaks off, the clients that are left are asked once more. If that
    fails, too, or if a model cannot be used, RunError is raised after the last round: the state is still there, from
    which the run can be resumed. In all other cases the run goes on without the files of the models that are missing.
    """
    by_client = {held.client: held for held in models if held.client is not None}
    found: dict[Held, Weights] = {}
    unusable: dict[int, Failure] = {}
    reasons: dict[int, Failure] = {}
    left = by_client
    for tries in range(_TRIES):
        if not left:
            break
        task = GroupTask(0, "collect", tuple(left), own_starts=left, results=Results.COLLECTED)
        outcome = await survey(context, progress, number, task, tries=tries)
        found |= {by_client[one]: got for one, got in outcome.models.items() if not isinstance(got, Failure)}
        unusable = {one: got for one, got in outcome.models.items() if isinstance(got, Failure)}
        reasons |= outcome.unanswered | unusable
        broken_off = {one for one, why in unusable.items() if why.code in LOST}
        not_asked = outcome.unanswered.keys() - outcome.left_out
        left = {client: left[client] for client in left if client in not_asked | broken_off}
    for client in [client for client, held in by_client.items() if held not in found]:
        reason = reasons.get(client, Failure(FailureCode.NO_SUCH_MODEL, "its node sent none"))
        context.journal.record(ModelNotSaved(client=client, reason=str(reason)))
    if left and last:
        raise RunError(
            f"the models of clients {listed(left)} cannot be saved: {reasons[next(iter(left))]}",
            "mend the cause, then resume the run, which plays its last round again",
        )
    if unusable and last:
        client, why = next(iter(unusable.items()))
        raise RunError(f"the model of client {client} cannot be saved: {why}", "see the nodes' logs")
    return found, bool(left)
