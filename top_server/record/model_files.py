"""Files of models: safetensors. A file is written under another name and renamed, so it is never half a file."""

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedgsp.errors import DataError, not_written, reason_of
from fedgsp.files import check_regular, sync
from fedgsp.tensors.digests import check_digest, with_digest


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


def save(path: Path, tensors: Mapping[str, NDArray[np.generic]], origin: Origin) -> None:
    """Writes named tensors to `path`; an existing file is replaced by a complete one at once. Raises RunError."""
    metadata = {name: str(value) for name, value in dataclasses.asdict(origin).items()}
    metadata["clients"] = ",".join(map(str, origin.clients))
    # order="C" and not ascontiguousarray, which would make a vector of a scalar
    ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    metadata = with_digest(ordered, metadata)
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
    """The tensors of a file and their origin.

    Raises DataError if the file is missing, cut, changed, or not of a run.
    """
    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, MemoryError) as error:
        raise DataError(f"{path} cannot be read: {reason_of(error)}", "check the path") from None
    except safetensors.SafetensorError as error:
        raise DataError(f"{path} is cut or not safetensors: {error}", "use another checkpoint") from None
    check_digest(path, tensors, metadata, "use another checkpoint")
    try:
        clients = tuple(int(client) for client in metadata.get("clients", "").split(",") if client)
        return tensors, Origin(
            metadata["run"], metadata["scheme"], int(metadata["round"]), int(metadata["seed"]), clients
        )
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} does not say which run made it ({error})", "use a checkpoint of a run") from None
