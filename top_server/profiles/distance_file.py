"""A file of distances that a run recorded, from which another run takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgsp import files
from fedgsp.errors import ConfigError


class Distance(NamedTuple):
    """How far the data of two clients are apart, from 0 (equal) to 1."""

    found: float
    #: The standard error of `found`; NaN if it is not known.
    error: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a file of distances."""

    #: The file; empty if there is none.
    path: str = ""
    #: (client, client) -> distance; every pair is there in both orders.
    known: Mapping[tuple[int, int], Distance] = field(default_factory=dict)
    #: Client -> its number of training samples when it was measured; empty if the file does not say.
    sizes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Recorded:
        """The content of the file with this path; nothing for an empty path. Raises ConfigError."""
        return read_file(Path(text)) if text else cls()


def read_file(path: Path) -> Recorded:
    """Reads the distances that a run recorded; raises ConfigError if they cannot be used."""
    try:
        document = files.parse_json(files.read_file(path))
        clients, matrix = document["clients"], np.array(document["distances"], np.float64)  # NaN for null
        if not isinstance(clients, list) or not all(type(client) is int and client >= 0 for client in clients):
            raise ValueError("clients must be a list of ids")
        if len(set(clients)) != len(clients):
            raise ValueError("a client is listed twice")
        if matrix.shape != (len(clients), len(clients)):
            raise ValueError(f"distances of shape {matrix.shape} for {len(clients)} clients")
        if (np.abs(matrix) > 1).any() or not np.array_equal(matrix, matrix.T, equal_nan=True):
            raise ValueError("distances must be symmetric, and from -1 to 1")
        errors = np.array(document.get("errors", np.full(matrix.shape, np.nan)), np.float64)
        if errors.shape != matrix.shape or (errors < 0).any() or not np.array_equal(errors, errors.T, equal_nan=True):
            raise ValueError("errors must have the shape of distances, be symmetric, and at least 0")
        sizes = document.get("sizes", [])
        if not isinstance(sizes, list) or len(sizes) not in (0, len(clients)) or {*map(type, sizes)} - {int}:
            raise ValueError("sizes must be a list of numbers of samples")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"option distances: {path} holds no distances ({error})", "give the distances.json of a run"
        ) from None
    known = {pair: it for pair, it in by_pair(clients, matrix, errors).items() if not math.isnan(it.found)}
    return Recorded(str(path), known, dict(zip(clients, sizes, strict=False)))


def by_pair(
    clients: Sequence[int], distances: NDArray[np.float64], errors: NDArray[np.float64]
) -> dict[tuple[int, int], Distance]:
    """Pair of different clients, in both orders -> distance; the arrays (N, N) have a row for each of the clients."""
    rows = list(enumerate(clients))
    return {
        (one, other): Distance(float(distances[i, j]), float(errors[i, j]))
        for i, one in rows
        for j, other in rows
        if i != j
    }
