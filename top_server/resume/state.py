"""What a run needs to go on after its top server died: on disk after every round, and whole or not there."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsp.errors import DataError, not_written
from fedgsp.settings.files import dump
from fedgsp.weights import Weights
from top_server.grouping import Plan
from top_server.models import Held
from top_server.record import checkpoint
from top_server.record.directory import RunDirectory, make_state

if TYPE_CHECKING:
    from top_server.run import Run

_FILE = "state.json"
#: States that stay: the last one, and one in case that is damaged.
_KEPT = 2
#: What is looked at before a run is there.
_KINDS: Mapping[str, type] = {"clients": list, "offences": dict, "config": str, "files": dict}
_REMEDY = "restore it, or start the run again"


@dataclass(frozen=True, slots=True)
class Saved:
    """The state after a round; `folder` holds its models."""

    round: int
    folder: Path
    document: Mapping[str, Any]
    #: What is wrong with later ones, which are not gone on from.
    damaged: tuple[str, ...] = ()

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that were there."""
        return tuple(self.document["clients"])


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A state that changes no more, whatever a thread takes its time for."""

    document: Mapping[str, Any]
    #: Models that this process holds, by the names of their files.
    models: Mapping[str, tuple[str, Weights]]
    origin: checkpoint.Origin


async def save(run: Run, directory: RunDirectory, number: int, files: Mapping[str, Path]) -> None:
    """Writes the state after a round, beside the one before; models that are in `files` are only linked.

    Raises RunError if the disk does not take it.
    """
    await asyncio.to_thread(_write, _snapshot(run, number), directory, number, files, run.profile.write)


def _snapshot(run: Run, number: int) -> _Snapshot:
    slots = run.models.slots
    here = {held.ref.id: held for held in slots.values() if held.client is None}
    names = {model_id: f"model-{index}.safetensors" for index, model_id in enumerate(sorted(here))}
    document = {
        "clients": list(run.membership.clients),
        "slots": {slot: held.to_json() for slot, held in slots.items()},
        "models": names,
        "plan": [run.plan.groups, run.plan.idle] if run.plan is not None else None,
        "first_clients": sorted(run.first_clients),
        "began": run.began,
        "histograms": run.histograms,
        "local_models": {client: held.to_json() for client, held in run.local_models.items()},
        "afresh": sorted(run.merging.afresh),
        "update_lengths": list(run.update_lengths),
        "config": dump(dataclasses.replace(run.config, run_dir=None)),
        "offences": run.membership.offences,
        "merging": run.merging.save(),
        "profile": run.profile.save(),
    }
    models = {name: (model_id, run.models.held(here[model_id])) for model_id, name in names.items()}
    origin = checkpoint.Origin(run.run_id, run.config.scheme, number, run.config.seed)
    return _Snapshot(json.loads(json.dumps(document)), models, origin)


def _write(
    snapshot: _Snapshot,
    directory: RunDirectory,
    number: int,
    files: Mapping[str, Path],
    write_profile: Callable[[Path], None],
) -> None:
    folder = directory.state / f"round-{number:04d}"
    aside = directory.state / ".writing"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        make_state(directory)
        aside.mkdir()
        for name, (model_id, weights) in snapshot.models.items():
            if model_id in files:
                _link(files[model_id], aside / name)
            else:
                checkpoint.save(aside / name, weights.arrays, snapshot.origin)
        write_profile(aside)
        sizes = {path.name: path.stat().st_size for path in aside.iterdir()}
        (aside / _FILE).write_text(json.dumps({**snapshot.document, "files": sizes}), encoding="utf-8")
        for path in (*aside.iterdir(), aside):
            checkpoint.sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
        checkpoint.sync(directory.state)  # before the oldest goes: after a power cut one of them is whole
        for _, other in _folders(directory)[:-_KEPT]:
            shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise not_written(folder, error) from error


def _link(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:  # not every file system has links
        shutil.copyfile(path, name)


def is_in(directory: RunDirectory) -> bool:
    """Whether a run can be gone on with."""
    return bool(_folders(directory))


def _folders(directory: RunDirectory) -> list[tuple[int, Path]]:
    """The states that are there, by round: names have four digits at least, and more from round 10,000 on."""
    named = [(path.name.removeprefix("round-"), path) for path in directory.state.glob("round-*")]
    return sorted((int(number), path) for number, path in named if number.isdecimal())


def latest(directory: RunDirectory) -> Saved | None:
    """The state after the last round that has a whole one; DataError if all are damaged."""
    damaged: list[str] = []
    for number, folder in reversed(_folders(directory)):
        try:
            document = json.loads((folder / _FILE).read_text("utf-8"))
            for name, kind in _KINDS.items():
                if not isinstance(document[name], kind):
                    raise TypeError(f"{name} is no {kind.__name__}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{folder / _FILE} cannot be read: {error}")
            continue
        cut = [name for name, size in document["files"].items() if not _is_whole(folder / name, size)]
        if not cut:
            return Saved(number, folder, document, tuple(damaged))
        damaged.append(f"{', '.join(str(folder / name) for name in sorted(cut))}: cut or missing")
    if damaged:
        remedy = "restore one of these states, or start the run again" if damaged[1:] else _REMEDY
        raise DataError("; ".join(damaged), remedy)
    return None


def _is_whole(path: Path, size: int) -> bool:
    """Whether a file has all of its bytes; what they are is looked at when they are used."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def offences(saved: Saved) -> dict[int, int]:
    """Those of each client, known before anybody joins again."""
    return {int(client): int(count) for client, count in saved.document["offences"].items()}


def _read(run: Run, path: Path) -> Weights:
    try:
        arrays, _ = checkpoint.load(path)
    except DataError as error:
        raise DataError(error.what, _REMEDY) from None
    weights = run.handed_on(Weights.of(arrays, run.tensors)).at_rest()
    _ = weights.digest  # here and not in the event loop
    return weights


async def restore(run: Run, saved: Saved) -> None:
    """Puts a run where it was; the clients' models are with their nodes. Raises DataError if the state is damaged."""
    document = saved.document
    try:
        refs = {slot: Held.from_json(held) for slot, held in document["slots"].items()}
        for model_id, name in document["models"].items():
            weights = await asyncio.to_thread(_read, run, saved.folder / name)
            slots = [slot for slot, held in refs.items() if held.ref.id == model_id]
            if weights.ref(model_id) != refs[slots[0]].ref:
                raise DataError(f"{saved.folder / name} is not the model that was saved", _REMEDY)
            run.models.put(slots, model_id, weights)
        run.models.point({slot: held for slot, held in refs.items() if held.client is not None})
        if document["plan"] is not None:
            groups, idle = document["plan"]
            run.plan = Plan(tuple(map(tuple, groups)), tuple(idle))
        run.first_clients.update(document["first_clients"])
        run.began.update({int(client): int(number) for client, number in document["began"].items()})
        run.histograms.update({int(client): tuple(counts) for client, counts in document["histograms"].items()})
        run.local_models.update(
            {int(client): Held.from_json(held) for client, held in document["local_models"].items()}
        )
        run.merging.afresh.update(document["afresh"])
        run.update_lengths.extend(document["update_lengths"])
        run.merging.restore(document["merging"])
        run.profile.restore(document["profile"])
        await asyncio.to_thread(run.profile.load, saved.folder)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        what = f"{saved.folder} is damaged ({type(error).__name__}: {error})"
        raise DataError(what, _REMEDY) from error
