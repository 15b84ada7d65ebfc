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
    """Where a model comes from; stands in the file's metadata."""

    run: str
    scheme: str
    #: The round that made it; 0 before the first.
    round: int
    seed: int
    #: The clients whose model it is; empty for a global model.
    clients: tuple[int, ...] = ()


class ModelFiles:
    """The models of one run. Its calls block until the disk has the bytes: make them from a thread."""

    def __init__(self, directory: Path, keep: str) -> None:
        self._directory = directory
        self._keep = keep

    def write_round(self, tensors: Tensors, origin: Origin, label: str = "") -> Path:
        """Write round-NNNN.safetensors, with a label if a round has several models; raises RunError."""
        return self._write(f"round-{origin.round:04d}", label, tensors, origin)

    def write_final(self, tensors: Tensors, origin: Origin, label: str = "") -> Path:
        """Write final.safetensors, likewise; raises RunError."""
        return self._write(FINAL, label, tensors, origin)

    def prune(self, newest: Iterable[Path], last: bool = False) -> None:
        """Remove earlier rounds' models, now that these are whole, unless all are kept; `last`: every round's."""
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
    """Write named tensors to `path`, replacing it at once and whole; raises RunError."""
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
    """The tensors of a file and where they come from; DataError if it is missing, cut, or not one of ours."""
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
    """Puts a file's bytes, or the names in a directory, where they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
