"""The state of a run on disk, from which `--resume` or `--extend` continues it; written whole after every round."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError, not_written
from fedgsp.files import parse_json, read_file, sync
from fedgsp.messages import TensorSpec
from fedgsp.settings.files import dump
from fedgsp.tensors.weights import Weights
from fedgsp.to_the_end import to_the_end
from top_server.merging import Merging
from top_server.models import Held
from top_server.nodes.departures import Departed
from top_server.profiles.base import AnyProfile
from top_server.progress import Progress
from top_server.record import model_files
from top_server.record.directory import RunDirectory, make_state
from top_server.record.room import waiting_for_room
from top_server.run import RunContext
from top_server.typed import has_type

logger = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[np.generic]]

#: A state that takes longer, in seconds, gets a line in the log: the round is over meanwhile, and the next one waits.
SLOW_S = 10.0
_FILE = "state.json"
#: The tensors that a merge keeps across rounds, if there are any.
_MERGING = "merging.safetensors"
#: How the folders of states begin: of a run that can be resumed, and of a finished run.
_OPEN, _FINISHED = "round-", "finished-"
#: How many states stay: the last one, and the one before in case the last is damaged.
_KEPT = 2
#: Parts of a state that are read before the run is restored, and their types.
_KINDS: Mapping[str, type] = {
    **{"nodes": dict, "away": list, "offences": dict, "owners": dict, "constants": dict},
    **{"config": str, "files": dict},
}
_REMEDY = "restore it, or start the run again"


@dataclass(frozen=True, slots=True)
class Saved:
    """The state after a round; `folder` holds its models."""

    round: int
    folder: Path
    document: Mapping[str, Any]
    #: What is wrong with the states of later rounds, which are not used.
    damaged: tuple[str, ...] = ()

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that were there."""
        return tuple(client for hosted in self.document["nodes"].values() for client in hosted)

    @property
    def nodes(self) -> dict[str, set[int]]:
        """The nodes that were there, with their clients."""
        return {str(node): set(map(int, clients)) for node, clients in self.document["nodes"].items()}

    @property
    def away(self) -> list[Departed]:
        """The nodes that were away."""
        return [Departed.from_json(one) for one in self.document["away"]]

    @property
    def offences(self) -> dict[int, int]:
        """Client -> the number of its rejected models, which is needed before a node joins again."""
        return {int(client): int(count) for client, count in self.document["offences"].items()}

    @property
    def owners(self) -> dict[int, str]:
        """Client -> the node that owns it."""
        return {int(client): str(node) for client, node in self.document["owners"].items()}

    @property
    def constants(self) -> dict[str, bytes]:
        """The digests of the tensors that do not travel, by name."""
        return {str(name): bytes.fromhex(digest) for name, digest in self.document["constants"].items()}


async def save(
    context: RunContext,
    progress: Progress,
    merging: Merging,
    profile: AnyProfile,
    directory: RunDirectory,
    number: int,
    files: Mapping[str, Path],
) -> None:
    """Writes the state after a round beside the state of the round before.

    `files` has checkpoints by the ids of their models; these are linked and not written again. Raises RunError if they
    cannot be written.
    """
    slots = context.models.slots
    here = {held.ref.id: held for held in slots.values() if held.client is None}
    names = {model_id: f"model-{index}.safetensors" for index, model_id in enumerate(sorted(here))}
    remembered, tensors = merging.state()
    document = {
        "nodes": {one.node: sorted(hosted.client for hosted in one.clients) for one in context.membership.hellos},
        "away": [dataclasses.asdict(one) for one in context.membership.departures.save()],
        "slots": {slot: held.to_json() for slot, held in slots.items()},
        "models": names,
        "config": dump(dataclasses.replace(context.config, run_dir=None)),
        "offences": context.membership.offences,
        "owners": context.membership.owners,
        "constants": {name: digest.hex() for name, digest in (context.membership.constants or {}).items()},
        "progress": progress.save(),
        "merging": remembered,
        "profile": profile.save(),
    }
    fixed = json.loads(json.dumps(document))  # it does not change while a thread writes it
    models: dict[str, Path | Tensors] = {
        name: files.get(model_id) or context.models.weights(here[model_id]).arrays for model_id, name in names.items()
    }
    if tensors:
        models[_MERGING] = tensors
    origin = model_files.Origin(context.run_id, context.config.scheme, number, context.config.seed)
    # To its end: the profile, which is closed when the run ends, must be there until it is written.
    await to_the_end(asyncio.to_thread(_write, directory, origin, fixed, models, profile.write))


@waiting_for_room
def _write(
    directory: RunDirectory,
    origin: model_files.Origin,
    document: Mapping[str, Any],
    models: Mapping[str, Path | Tensors],
    write_profile: Callable[[Path], None],
) -> None:
    """Writes a state; a model of `models` is its tensors, or a file that has them already."""
    folder, begin = directory.state / f"{_OPEN}{origin.round:04d}", time.monotonic()
    aside = directory.state / ".writing"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        make_state(directory)
        aside.mkdir()
        for name, model in models.items():
            if isinstance(model, Path):
                _link(model, aside / name)
            else:
                model_files.save(aside / name, model, origin)
        write_profile(aside)
        sizes = {path.name: path.stat().st_size for path in aside.iterdir()}
        (aside / _FILE).write_text(json.dumps({**document, "files": sizes}), encoding="utf-8")
        # The record first: a state without the settings, or without the rows of its rounds, could not be resumed.
        record = (directory.config, directory.history, directory.events, directory.audit)
        for path in (*filter(Path.exists, record), *aside.iterdir(), aside):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
        sync(directory.state)  # before the oldest goes: after a power cut one of them is whole
        for _, other in _folders(directory)[:-_KEPT]:
            shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise not_written(folder, error) from error
    if (took_s := time.monotonic() - begin) > SLOW_S:
        logger.warning("round=%d the disk took %.0f s for the state of the run: it is slow", origin.round, took_s)


def _link(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:  # not every file system has links
        shutil.copyfile(path, name)


def is_in(directory: RunDirectory) -> bool:
    """Whether there is a state from which the run can be resumed."""
    return any(path.name.startswith(_OPEN) for _, path in _folders(directory))


def close(directory: RunDirectory, keep: bool) -> None:
    """Sets the last state of a finished run aside, from where `reopen` takes it; without `keep`, removes all states.

    What cannot be changed stays as it is.
    """
    if not keep:
        shutil.rmtree(directory.state, ignore_errors=True)
        return
    *others, (number, last) = _folders(directory)
    with contextlib.suppress(OSError):
        last.rename(directory.state / f"{_FINISHED}{number:04d}")
    for _, other in others:
        shutil.rmtree(other, ignore_errors=True)


def reopen(directory: RunDirectory) -> None:
    """Lets `is_in` find the state of a finished run again; raises RunError if that fails."""
    for number, folder in _folders(directory):
        try:
            folder.rename(directory.state / f"{_OPEN}{number:04d}")
        except OSError as error:
            raise not_written(folder, error) from error


def _folders(directory: RunDirectory) -> list[tuple[int, Path]]:
    """The states by round. The names have at least four digits, and more from round 10,000 on."""
    found = [
        (path.name.removeprefix(begin), path)
        for begin in (_OPEN, _FINISHED)
        for path in directory.state.glob(f"{begin}*")
    ]
    return sorted((int(number), path) for number, path in found if number.isdecimal())


def latest(directory: RunDirectory) -> Saved | None:
    """The newest state that is whole, None if there is no state; DataError if all are damaged."""
    damaged: list[str] = []
    for number, folder in reversed(_folders(directory)):
        try:
            document = parse_json(read_file(folder / _FILE), finite=False)
            sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
            if others := [path.name for path in folder.iterdir() if not path.is_file()]:
                raise TypeError(f"{others[0]} beside it is no file")
            for name, kind in _KINDS.items():
                if not isinstance(document[name], kind):
                    raise TypeError(f"{name} is no {kind.__name__}")
            if not has_type(document["nodes"], dict[str, list[int]]):
                raise TypeError("clients are no ids")
            for one in document["away"]:
                Departed.from_json(one)
            for digest in document["constants"].values():
                bytes.fromhex(digest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{folder / _FILE} cannot be read: {error}")
            continue
        # The content of a file is checked when it is read.
        cut = [name for name, size in document["files"].items() if sizes.get(name) != size]
        if not cut:
            return Saved(number, folder, document, tuple(damaged))
        damaged.append(f"{', '.join(str(folder / name) for name in sorted(cut))}: cut or missing")
    if damaged:
        raise DataError(
            "; ".join(damaged), "restore one of these states, or start the run again" if damaged[1:] else _REMEDY
        )
    return None


def _remedy(folder: Path) -> str:
    """What to do about a damaged state in `folder`."""
    damaged = int(folder.name.rpartition("-")[2])
    older = [number for number, _ in _folders(RunDirectory(folder.parent.parent)) if number < damaged]
    return f"{_REMEDY}; or remove {folder}, and the run goes on from round {max(older)}" if older else _REMEDY


def _load(path: Path) -> Tensors:
    try:
        return model_files.load(path)[0]
    except DataError as error:
        raise DataError(error.what, _remedy(path.parent)) from None


def _check_task(saved: Tensors, tensors: tuple[TensorSpec, ...]) -> None:
    """Raises DataError if the nodes of a resumed run have another model: then the state is not to blame."""
    run = {name: f"{array.dtype}{list(array.shape)}" for name, array in saved.items()}
    nodes = {spec.name: f"{spec.dtype}{list(spec.shape)}" for spec in tensors}
    for name in (*nodes, *run):
        if run.get(name) != nodes.get(name):
            raise DataError(
                f"the task of the nodes has another model than the run: tensor {name!r} is"
                f" {nodes.get(name, 'missing')}, and in the run it is {run.get(name, 'missing')}",
                "start the nodes with the task and the options of the run, then resume it",
            )


def _read(context: RunContext, path: Path) -> Weights:
    loaded = _load(path)
    _check_task(loaded, context.tensors)
    weights = context.handed_on(Weights.of(loaded, context.tensors)).at_rest()
    _ = weights.digest  # here and not in the event loop
    return weights


async def restore(
    context: RunContext, progress: Progress, merging: Merging, profile: AnyProfile, saved: Saved
) -> None:
    """Puts a run where its state was saved; nodes still hold their clients' models. DataError if it is damaged."""
    document = saved.document
    try:
        refs = {slot: Held.from_json(held) for slot, held in document["slots"].items()}
        for model_id, name in document["models"].items():
            if name not in document["files"]:
                raise ValueError(f"model {model_id} is in no file of it")
            weights = await asyncio.to_thread(_read, context, saved.folder / name)
            slots = [slot for slot, held in refs.items() if held.ref.id == model_id]
            if weights.ref(model_id) != refs[slots[0]].ref:
                raise DataError(f"{saved.folder / name} is not the model that was saved", _remedy(saved.folder))
            context.models.put(slots, model_id, weights)
        context.models.apply({slot: held for slot, held in refs.items() if held.client is not None})
        progress.restore(document["progress"])
        tensors = await asyncio.to_thread(_load, saved.folder / _MERGING) if _MERGING in document["files"] else {}
        merging.restore(document["merging"], tensors)
        profile.restore(document["profile"])
        await asyncio.to_thread(profile.load, saved.folder)
    except (OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        what = f"{saved.folder} is damaged ({type(error).__name__}: {error})"
        raise DataError(what, _remedy(saved.folder)) from error
