"""A file of distances that a run recorded, from which another run takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgsp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a file of distances."""

    #: The file; empty if there is none.
    path: str = ""
    #: (client, client) -> distance; every pair is there in both orders.
    known: Mapping[tuple[int, int], float] = field(default_factory=dict)
    #: Client -> its number of training samples when it was measured; empty if the file does not say.
    sizes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Recorded:
        """The content of the file with this path; nothing for an empty path. Raises ConfigError."""
        return read_file(Path(text)) if text else cls()


def read_file(path: Path) -> Recorded:
    """Reads the distances that a run recorded; raises ConfigError if they cannot be used."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        clients, matrix = document["clients"], np.array(document["distances"], np.float64)  # NaN for null
        if not isinstance(clients, list) or not all(type(client) is int and client >= 0 for client in clients):
            raise ValueError("clients must be a list of ids")
        if len(set(clients)) != len(clients):
            raise ValueError("a client is listed twice")
        if matrix.shape != (len(clients), len(clients)):
            raise ValueError(f"distances of shape {matrix.shape} for {len(clients)} clients")
        if (np.abs(matrix) > 1).any() or not np.array_equal(matrix, matrix.T, equal_nan=True):
            raise ValueError("distances must be symmetric, and from -1 to 1")
        sizes = document.get("sizes", [])
        if not isinstance(sizes, list) or len(sizes) not in (0, len(clients)) or {*map(type, sizes)} - {int}:
            raise ValueError("sizes must be a list of numbers of samples")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"option distances: {path} holds no distances ({error})", "give the distances.json of a run"
        ) from None
    rows = list(enumerate(clients))
    known = {(one, other): float(matrix[i, j]) for i, one in rows for j, other in rows if i != j}
    known = {pair: distance for pair, distance in known.items() if not math.isnan(distance)}
    return Recorded(str(path), known, dict(zip(clients, sizes, strict=False)))
