"""The digest in the metadata of a safetensors file. A reader compares it, and so finds a file that has changed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedgsp.errors import DataError
from fedgsp.tensors.spill import walk

#: The name of the digest in the metadata.
DIGEST = "digest"


def with_digest(tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a file that is to be written, with the digest of these tensors and of the other metadata."""
    return {**metadata, DIGEST: _digest(tensors, metadata)}


def check_digest(
    path: Path, tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str], remedy: str
) -> None:
    """Raises DataError if a file that was read has changed. Files of earlier versions have no digest and pass."""
    if DIGEST in metadata and metadata[DIGEST] != _digest(tensors, metadata):
        raise DataError(f"{path} has changed since it was written: its content has another digest", remedy)


def _digest(tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str]) -> str:
    """BLAKE3 in hex digits; the order of tensors and metadata does not count."""
    hasher = blake3(json.dumps(sorted((key, text) for key, text in metadata.items() if key != DIGEST)).encode())
    for name in sorted(tensors):
        array = tensors[name]
        hasher.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        for piece in _pieces(array):
            hasher.update(piece.data)
    return hasher.hexdigest()


def _pieces(array: NDArray[np.generic]) -> Iterator[NDArray[np.uint8]]:
    yield from walk(np.asarray(array, order="C").reshape(-1).view(np.uint8))
