"""The clients' updates and their inner products, from whole updates or from sketches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsp.updates import LENGTH_BYTES
from top_server.reveals.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ROWS = 1024  # clients multiplied at a time: bounds what is needed beside the result
_BYTES = 256  # of signs that are multiplied at a time, for the same reason
_LENGTH = slice(LENGTH_BYTES)
#: Lengths are multiplied and squared; those of float32 updates are far below.
_LONGEST = 1e150


class UpdateSpool(Spool):
    """Whole updates, or one layer of each.

    A Gram matrix of N clients takes N x N + 3072 x N floats of float64 beside the updates.
    """

    def gram(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Inner products, shape (N, N) in the order of `clients`, NaN for those without an update.

        Summed in float64 from the first column to the last, 2048 at a time: the same bits whenever and in whatever
        order the updates came, and wherever they are kept.
        """
        present = self.present(clients)
        gram = np.zeros((len(present), len(present)))
        for block in self.blocks([clients[place] for place in present]):
            _add_products(gram, block.astype(np.float64))
        return _mirrored(gram, present, len(clients))


class SketchSpool(Spool):
    """Lengths and signs of updates (docs/decisions, 0007)."""

    dtype = np.dtype(np.uint8)

    def gram(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Inner products as far as the sketches tell them, else as `UpdateSpool.gram`.

        Of two unit vectors at an angle t, a share t / pi of the signs differs (Goemans and Williamson, JACM 1995).
        """
        present = self.present(clients)
        shown = [clients[place] for place in present]
        gram = np.zeros((len(present), len(present)))
        if not present:
            return _mirrored(gram, present, len(clients))
        (block,) = self.blocks(shown, _LENGTH)
        lengths = _lengths(block)
        signs = 0
        for block in self.blocks(shown, slice(LENGTH_BYTES, None)):
            for left in range(0, block.shape[1], _BYTES):
                bits = np.unpackbits(block[:, left : left + _BYTES], axis=1)
                signs += bits.shape[1]
                # Sums of so few ones and minus ones are exact in float32.
                _add_products(gram, np.float32(1) - 2 * bits.astype(np.float32))
        for row, products in enumerate(gram):
            products *= math.pi / 2 / signs
            np.sin(products, out=products)
            products *= lengths[row] * lengths
        return _mirrored(gram, present, len(clients))

    def _check(self, client: int, vector: NDArray[Any]) -> None:
        super()._check(client, vector)
        if len(vector) <= LENGTH_BYTES:
            raise ValueError(f"the sketch of client {client} has {len(vector)} bytes, which leaves none for signs")
        (length,) = _lengths(vector[None, _LENGTH])
        if not 0 <= length < _LONGEST:
            raise ValueError(f"the sketch of client {client} says that its update is {length} long")


def _lengths(shown: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Shape (N,), from the first bytes of N sketches."""
    return np.frombuffer(shown.tobytes(), "<f8")


def _add_products(gram: NDArray[np.float64], rows: NDArray[np.floating]) -> None:
    """Adds all inner products of rows to the upper triangle, and to some of the lower."""
    for row in range(0, len(rows), _ROWS):
        gram[row : row + _ROWS, row:] += rows[row : row + _ROWS] @ rows[row:].T


def _mirrored(gram: NDArray[np.float64], present: Sequence[int], count: int) -> NDArray[np.float64]:
    """The upper triangle below as well; the rows and columns of `count` clients who are not present are NaN."""
    for row in range(len(gram)):
        gram[row + 1 :, row] = gram[row, row + 1 :]
    if len(present) == count:
        return gram
    padded = np.full((count, count), np.nan)
    padded[np.ix_(present, present)] = gram
    return padded
