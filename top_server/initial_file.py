"""The file of `--initial-model`: whether it has the model of the task, and the model with its values."""

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from blake3 import blake3
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.files import check_regular, open_file
from fedgsp.messages import Constant, TensorSpec
from fedgsp.tensors.headers import Kind, kinds
from fedgsp.tensors.weights import Weights, WeightsError, check_finite
from fedgsp.visible import visible

#: Most tensors that an error names.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Expected:
    """The tensors that a file is compared with, when the first node has told them."""

    #: The tensors of the task's model that travel in the run.
    needed: tuple[TensorSpec, ...]
    #: Tensors that the run adds to the model. A checkpoint of such a run has them too.
    added: tuple[TensorSpec, ...] = ()
    #: Names of the tensors that stay with the clients.
    heads: Collection[str] = ()
    #: The tensors that training does not change, with their digests: nodes make them.
    constants: tuple[Constant, ...] = ()


def check_readable(path: Path) -> None:
    """Raises ConfigError if there is no safetensors file at `path`."""
    with _opened(path) as file:
        if not file.keys():
            raise ConfigError(f"--initial-model {path} holds no tensors", "give a file with the weights of the model")


def check_fits(path: Path, expected: Expected) -> None:
    """Raises ConfigError, with the names of tensors, unless the file has the model of the task.

    The values are read only if names, shapes and dtypes fit.
    """
    constants = {one.tensor.name: (one.tensor, one.digest) for one in expected.constants if one.tensor is not None}
    with _opened(path) as file:
        found = kinds(file)
        other = [
            name
            for name, (spec, digest) in constants.items()
            if found.get(name) == (spec.dtype, spec.shape)
            and _digest(found[name], _tensor(path, file, name)) != digest
        ]
        own = {spec.name: spec for spec in (*expected.needed, *expected.added)}
        known = {**own, **{name: spec for name, (spec, _) in constants.items()}}
        twins = _twins(path, file, found, known)
    lacking = [spec.name for spec in expected.needed if spec.name not in found]
    heads = [name for name in found if name in expected.heads]
    fitting = {*known, *twins, *expected.heads}
    strange = [name for name in found if name not in fitting]
    differing = [
        f"{visible(name)} is {dtype}{list(shape)} and should be {known[name].dtype}{list(known[name].shape)}"
        for name, (dtype, shape) in found.items()
        if name in known and (dtype, shape) != (known[name].dtype, known[name].shape)
    ]
    task = "give a file with the tensors of the task's model, of the same names, shapes and dtypes"
    for names, what, remedy in (
        (lacking, "lacks tensors of the task's model", task),
        (strange, "has tensors that the task's model does not have", task),
        (differing, "has tensors of another shape or dtype", task),
        (heads, "has tensors that this scheme keeps with the clients", "remove them from the file"),
        (
            other,
            "has other values for tensors that training does not change",
            "remove them from the file, or let model() of the task make these values",
        ),
    ):
        if names:
            raise ConfigError(f"--initial-model {path} {what}: {_listed(names)}", remedy)
    with _opened(path) as file:
        for name in (name for name in found if name in own):  # one at a time: a model may be large
            check_values(path, Weights.of({name: _tensor(path, file, name)}, (own[name],)))


def check_values(path: Path, weights: Weights) -> None:
    """Raises ConfigError for values that no model may have; `path` is the file that they are from."""
    try:
        check_finite(weights)
    except WeightsError as error:
        raise ConfigError(f"--initial-model {path}: {visible(error.failure.detail)}", "give another file") from None


def with_values(path: Path, made: Weights) -> Weights:
    """A model with the values of the file where the file has a tensor, and those of `made` elsewhere.

    Raises ConfigError for values that no model may have, and if the file has changed since it was checked.
    """
    with _opened(path) as file:
        names = set(file.keys())
        weights = made.copy()
        for name, array in weights.arrays.items():
            if name in names:
                try:
                    array[...] = _tensor(path, file, name)
                except ValueError:
                    raise ConfigError(f"--initial-model {path} has changed while it was read", "start again") from None
    check_values(path, weights)
    return weights


def sha256(path: Path) -> str:
    """The digest of the file, as `sha256sum` shows it; raises ConfigError if the file cannot be read."""
    try:
        hasher = hashlib.sha256()
        with open_file(path) as file:
            while piece := file.read(1 << 20):
                hasher.update(piece)
        return hasher.hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (OSError, ValueError, MemoryError) as error:
        raise _unreadable(path, error) from None
    except safetensors.SafetensorError as error:
        raise ConfigError(
            f"--initial-model {path} is not a safetensors file: {visible(str(error))}",
            "write one with safetensors.torch.save_file(model.state_dict(), FILE)",
        ) from None


def _unreadable(path: Path, error: OSError | ValueError | MemoryError) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"--initial-model {path} cannot be read: {reason}", "check the path")


def _tensor(path: Path, file: Any, name: str) -> NDArray[np.generic]:
    try:
        tensor: NDArray[np.generic] = file.get_tensor(name)
    except (TypeError, AttributeError):  # numpy has no such dtype
        raise ConfigError(
            f"--initial-model {path}: tensor {visible(name)} has a dtype that numpy lacks", "convert it to float32"
        ) from None
    return tensor


def _twins(path: Path, file: Any, found: Mapping[str, Kind], known: Mapping[str, TensorSpec]) -> set[str]:
    """Further names of tensors of the model: a file has a tensor of tied layers under several names."""
    own = {name for name, spec in known.items() if found.get(name) == (spec.dtype, spec.shape)}
    alike = {found[name] for name in own}
    further = {name for name, kind in found.items() if name not in known and kind in alike}
    among = {found[name] for name in further}

    def digest(name: str) -> bytes:
        return _digest(found[name], _tensor(path, file, name))

    same = {digest(name) for name in own if found[name] in among}
    return {name for name in further if digest(name) in same}


def _digest(kind: Kind, array: NDArray[np.generic]) -> bytes:
    """The digest that nodes tell of a constant: BLAKE3 of dtype, shape and values."""
    dtype, shape = kind
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return blake3(f"{dtype}{list(shape)}".encode()).update(values.data).digest()


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    shown = ", ".join(visible(name) for name in names[:_MOST_NAMED])
    return f"{shown}, and {more} more" if more > 0 else shown
