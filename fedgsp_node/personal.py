"""What clients keep to themselves: tensors that never leave the node, on disk if a directory is given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedgsp.errors import DataError, RunError

Arrays = Mapping[str, NDArray[Any]]

#: Purposes, which are also parts of file names.
HEAD, MODEL = "head", "model"


class PersonalState:
    """Named tensors per client and purpose, of one run at a time; a restarted node finds them again."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._run_id = ""
        self._held: dict[tuple[int, str], tuple[str, Arrays]] = {}
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(
                    f"--state-dir {directory} cannot be made: {error.strerror}", "give a directory that can be written"
                ) from None

    def open(self, run_id: str) -> None:
        """Turns to a run: what belongs to another one stays on disk, but is not used."""
        if run_id != self._run_id:
            self._run_id = run_id
            self._held.clear()

    def get(self, client: int, purpose: str) -> tuple[str, Arrays] | None:
        """The label and the tensors kept for a client, or None; DataError if its file is damaged."""
        found = self._held.get((client, purpose))
        path = self._path(client, purpose)
        if found is None and path is not None and path.exists():
            found = self._held[client, purpose] = _read(path)
        return found

    def put(self, client: int, purpose: str, arrays: Arrays, label: str = "") -> None:
        """Keeps copies in place of what was kept before; RunError if the disk does not take them."""
        copies = {name: np.array(array, order="C") for name, array in arrays.items()}
        path = self._path(client, purpose)
        if path is not None:
            _write(path, copies, label)
        self._held[client, purpose] = (label, copies)

    def _path(self, client: int, purpose: str) -> Path | None:
        if self._directory is None:
            return None
        return self._directory / f"{self._run_id}-client-{client}.{purpose}.safetensors"


def _read(path: Path) -> tuple[str, Arrays]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            label = (file.metadata() or {}).get("label", "")
            return label, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}", "restore it, or remove it to start afresh") from None


def _write(path: Path, arrays: Arrays, label: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    try:
        aside.write_bytes(safetensors.numpy.save(dict(arrays), {"label": label}))
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}", "make room on that disk") from None
