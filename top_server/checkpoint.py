"""Models on disk: safetensors, written aside and renamed, so that a file that bears its name is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

from fedgsp.errors import DataError, RunError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[np.generic]]

FINAL = "final.safetensors"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model comes from; stands in the file's metadata."""

    run: str
    scheme: str
    #: The round that made it; 0 before the first.
    round: int
    seed: int


class Checkpoints:
    """The models of one run. Its calls block until the disk has the bytes: make them from a thread."""

    def __init__(self, directory: Path, keep: str) -> None:
        self._directory = directory
        self._keep = keep

    def save_round(self, tensors: Tensors, origin: Origin) -> Path:
        """Write round-NNNN.safetensors, then remove older ones unless all are kept; raises RunError."""
        return self._save(f"round-{origin.round:04d}.safetensors", tensors, origin)

    def save_final(self, tensors: Tensors, origin: Origin) -> Path:
        """Write final.safetensors, which takes the place of the last round's unless all are kept; raises RunError."""
        return self._save(FINAL, tensors, origin)

    def _save(self, name: str, tensors: Tensors, origin: Origin) -> Path:
        newest = self._directory / name
        save(newest, tensors, origin)
        if self._keep == "last":
            for path in self._directory.glob("round-*.safetensors"):
                if path != newest:
                    path.unlink(missing_ok=True)
        return newest


def save(path: Path, tensors: Tensors, origin: Origin) -> None:
    """Write named tensors to `path`, replacing it at once and whole; raises RunError."""
    metadata = {name: str(value) for name, value in dataclasses.asdict(origin).items()}
    # order="C" and not ascontiguousarray, which would make a vector of a scalar
    ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    data = safetensors.numpy.save(ordered, metadata)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}", "make room on that disk") from error


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
        origin = Origin(metadata["run"], metadata["scheme"], int(metadata["round"]), int(metadata["seed"]))
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} does not say which run made it ({error})", "use a checkpoint of a run") from None
    return tensors, origin


def _sync_directory(directory: Path) -> None:
    # the new name must survive a power cut as well
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
