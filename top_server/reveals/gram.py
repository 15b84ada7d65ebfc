"""The clients' updates and their inner products, from whole updates or from sketches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.updates import LENGTH_BYTES
from top_server.reveals.spool import Spool

_ROWS = 1024  # clients multiplied at a time: bounds what is needed beside the result
_BYTES = 256  # of signs that are multiplied at a time, for the same reason
_LENGTH = slice(LENGTH_BYTES)
#: Lengths are multiplied and squared; those of float32 updates are far below.
_LONGEST = 1e150


class UpdateSpool(Spool):
    """The updates of the clients as vectors: whole updates, or one layer of each.

    Beside the updates, the Gram matrix of N clients needs N x N + 3072 x N numbers in float64.
    """

    def gram(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Inner products of the updates, shape (N, N) in the order of `clients`; NaN for clients without an update.

        Summed in float64 from the first column to the last, 2048 columns at a time. So the bits depend neither on when
        and in which order the updates came, nor on where they are kept.
        """
        present = self.present(clients)
        gram = np.zeros((len(present), len(present)))
        for block in self.blocks([clients[place] for place in present]):
            _add_products(gram, block.astype(np.float64))
        return _mirrored(gram, present, len(clients))


class SketchSpool(Spool):
    """Sketches of updates: the length of each update, and signs of random projections (docs/decisions, 0007)."""

    dtype = np.dtype(np.uint8)

    def gram(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Inner products of the updates, estimated from their sketches; otherwise as in `UpdateSpool.gram`.

        If two vectors have the angle t, a share t / pi of their signs differs (Goemans and Williamson, JACM 1995).
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
    """The lengths of N updates, shape (N,), from the first bytes of their sketches."""
    return np.frombuffer(shown.tobytes(), "<f8")


def _add_products(gram: NDArray[np.float64], rows: NDArray[np.floating]) -> None:
    """Adds the inner products of all rows to `gram`: to its whole upper triangle, and to a part of the lower one."""
    for row in range(0, len(rows), _ROWS):
        gram[row : row + _ROWS, row:] += rows[row : row + _ROWS] @ rows[row:].T


def _mirrored(gram: NDArray[np.float64], present: Sequence[int], count: int) -> NDArray[np.float64]:
    """The matrix with its upper triangle copied to the lower one, and with rows and columns for all `count` clients.

    `present` are the positions of the rows of `gram`. All other rows and columns are NaN.
    """
    for row in range(len(gram)):
        gram[row + 1 :, row] = gram[row, row + 1 :]
    if len(present) == count:
        return gram
    padded = np.full((count, count), np.nan)
    padded[np.ix_(present, present)] = gram
    return padded
