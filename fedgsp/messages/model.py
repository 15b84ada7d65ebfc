"""Names for weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class SourceKind(IntEnum):
    """Who holds a model."""

    UNSPECIFIED = 0
    LOCAL = 1
    NODE = 2
    MANAGER = 3
    TOP_SERVER = 4
    OWN = 5


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Stands for weights; size in bytes and XXH3 digest are empty while the model is only promised."""

    id: str
    size: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, numpy dtype and shape of one tensor of a model; whether it is trained, and part of the classifier head."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool = True
    head: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Somebody who holds a model, or will."""

    kind: SourceKind
    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """What precedes the bytes of a model; without an encoding these are the buffer itself. See `windows`."""

    ref: ModelRef | None
    tensors: tuple[TensorSpec, ...]
    encoding: str = ""
    window: str = ""
