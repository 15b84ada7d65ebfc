"""Files of models: safetensors. A file is written under another name and renamed, so it is never half a file."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

from fedgsp.errors import DataError, not_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[np.generic]]

FINAL = "final"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model comes from; this is written into the metadata of its file."""

    run: str
    scheme: str
    #: The round that made it; 0 before the first.
    round: int
    seed: int
    #: The clients that use the model; empty for a global model.
    clients: tuple[int, ...] = ()


class ModelFiles:
    """Writes the models of one run into a directory. Calls wait for the disk, so they belong into a thread."""

    def __init__(self, directory: Path, keep: str) -> None:
        self._directory = directory
        self._keep = keep

    def write_round(self, tensors: Tensors, origin: Origin, label: str = "") -> Path:
        """Writes round-NNNN.safetensors, with `label` in the name if a round has several models; raises RunError."""
        return self._write(f"round-{origin.round:04d}", label, tensors, origin)

    def write_final(self, tensors: Tensors, origin: Origin, label: str = "") -> Path:
        """Writes final.safetensors, with `label` in the name if there are several models; raises RunError."""
        return self._write(FINAL, label, tensors, origin)

    def prune(self, newest: Iterable[Path], last: bool = False) -> None:
        """Removes the models of earlier rounds, unless the run keeps all. The files `newest` stay, unless `last`.

        Call it when the newest files are whole. `last`: the final model is written, so no round's models are needed.
        """
        newest = set(newest)
        if self._keep == "last" and newest:
            for path in self._directory.glob("round-*.safetensors"):
                if last or path not in newest:
                    path.unlink(missing_ok=True)

    def _write(self, name: str, label: str, tensors: Tensors, origin: Origin) -> Path:
        path = self._directory / (f"{name}-{label}.safetensors" if label else f"{name}.safetensors")
        save(path, tensors, origin)
        return path


def save(path: Path, tensors: Tensors, origin: Origin) -> None:
    """Writes named tensors to `path`; an existing file is replaced by a complete one at once. Raises RunError."""
    metadata = {name: str(value) for name, value in dataclasses.asdict(origin).items()}
    metadata["clients"] = ",".join(map(str, origin.clients))
    # order="C" and not ascontiguousarray, which would make a vector of a scalar
    ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    # A folder of its own: the library leaves a file of a name that we cannot know if the process is killed.
    folder = path.with_name(".writing")
    aside = folder / path.name
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        safetensors.numpy.save_file(ordered, aside, metadata)  # straight from the tensors' memory
        aside.chmod(folder.stat().st_mode & 0o666)  # the library lets nobody else read it
        sync(aside)
        aside.replace(path)
        sync(path.parent)
    except (OSError, safetensors.SafetensorError) as error:
        raise not_written(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(path: Path) -> tuple[dict[str, NDArray[np.generic]], Origin]:
    """The tensors of a file and their origin; raises DataError if the file is missing, cut, or not of a run."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", "check the path") from None
    except safetensors.SafetensorError as error:
        raise DataError(f"{path} is cut or not safetensors: {error}", "use another checkpoint") from None
    try:
        clients = tuple(int(client) for client in metadata.get("clients", "").split(",") if client)
        origin = Origin(metadata["run"], metadata["scheme"], int(metadata["round"]), int(metadata["seed"]), clients)
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} does not say which run made it ({error})", "use a checkpoint of a run") from None
    return tensors, origin


def sync(path: Path) -> None:
    """Makes sure that the bytes of a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
