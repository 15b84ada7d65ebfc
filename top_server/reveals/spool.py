"""Keeps the vectors that clients revealed, one for each client, in bounded memory, and multiplies them.

A vector is a whole update, one layer of it, or a sketch of it.
"""

import abc
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import RunError
from fedgsp.files import write_all
from fedgsp.tensors.updates import LENGTH_BYTES
from top_server.record.room import waiting_for_room

#: Columns read at a time. It decides the order of summation, so it may not depend on where the vectors are kept.
COLUMNS = 2048
_ROWS = 1024  # clients multiplied at a time: bounds what is needed beside the result
_BYTES = 256  # of signs that are multiplied at a time, for the same reason
#: Lengths are multiplied and squared; those of float32 updates are far below.
_LONGEST = 1e150


class Spool(abc.ABC):
    """One vector per client: in memory up to `memory_bytes`, beyond that all in a file without a name.

    Only one thread may use the spool at a time. From a file, `memory_bytes` are read at a time.
    """

    #: The dtype of every vector.
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def __init__(self, directory: Path, memory_bytes: int = 256 << 20) -> None:
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._length = 0
        self._held: dict[int, NDArray[Any]] = {}
        self._file: FileIO | None = None
        self._rows: dict[int, int] = {}  # client -> row of the file; invariant: empty while there is no file

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that have an update, in ascending order."""
        return tuple(sorted(self._held or self._rows))

    def put(self, client: int, vector: NDArray[Any]) -> None:
        """Keeps a copy of a client's update, in place of its earlier one.

        Raises ValueError that names the client if the update has another dtype or length than the others, or is not
        finite. Raises RunError if the disk cannot take it; the client then has no update.
        """
        self._check(client, vector)
        self.forget(client)
        if not self.clients:
            self._length = len(vector)
        if self._file is None and (len(self._held) + 1) * vector.nbytes > self._memory_bytes:
            self._spool()
        if self._file is None:
            self._held[client] = vector.copy()
        else:
            self._write(self._file, client, vector)

    def forget(self, client: int) -> None:
        """Drop a client's update, if there is one."""
        self._held.pop(client, None)
        self._rows.pop(client, None)

    def blocks(self, clients: Sequence[int], columns: slice = slice(None)) -> Iterator[NDArray[Any]]:
        """Yields the updates of `clients` in blocks of columns, shape (N, up to 2048) each, from the first column on.

        A block is valid until the next one is requested. Raises ValueError for a client without an update.
        """
        if without := [client for client in clients if client not in self._held and client not in self._rows]:
            raise ValueError(f"client {without[0]} has no update")
        start, stop, step = columns.indices(self._length)
        if step != 1:
            raise ValueError(f"columns are read one after the other, not every {step}")
        if not clients:
            return
        # A file is read in few, long pieces: as much as the memory allows.
        pieces = 1 if self._file is None else self._memory_bytes // (self.dtype.itemsize * len(clients) * COLUMNS)
        most = max(1, pieces) * COLUMNS
        room = np.empty(len(clients) * max(0, min(most, stop - start)), self.dtype)
        for at in range(start, stop, most):
            width = min(most, stop - at)
            chunk = room[: len(clients) * width].reshape(len(clients), width)
            for row, client in zip(chunk, clients, strict=True):
                self._read(client, at, row)
            for left in range(0, width, COLUMNS):
                yield chunk[:, left : left + COLUMNS]

    def vector(self, client: int, columns: slice = slice(None)) -> NDArray[Any]:
        """A copy of a client's update, or of some columns of it."""
        return np.concatenate([block[0].copy() for block in self.blocks([client], columns)])

    def save(self, folder: Path) -> None:
        """Writes each update into a file of its own in `folder`; raises OSError."""
        for client in self.clients:
            _save(folder / f"update-{client}.npy", self.vector(client))

    def load(self, folder: Path) -> None:
        """Reads the updates that `save` wrote into `folder`; raises OSError or ValueError."""
        for path in sorted(folder.glob("update-*.npy")):
            self.put(int(path.stem.removeprefix("update-")), np.load(path))

    def close(self) -> None:
        """Forgets all updates and frees the disk. Nothing can be kept afterwards."""
        self._held.clear()
        self._rows.clear()
        if self._file is not None:
            self._file.close()

    def gram(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Inner products of the updates, shape (N, N) in the order of `clients`; NaN for clients without an update.

        Summed in float64 from the first column to the last, 2048 columns at a time. So the bits depend neither on when
        and in which order the updates came, nor on where they are kept. Beside the updates, N x N + 3072 x N numbers
        in float64 are needed.
        """
        present = [place for place, client in enumerate(clients) if client in self._held or client in self._rows]
        gram = np.zeros((len(present), len(present)))
        if present:
            self._multiply([clients[place] for place in present], gram)
        for row in range(len(gram)):
            gram[row + 1 :, row] = gram[row, row + 1 :]
        if len(present) == len(clients):
            return gram
        padded = np.full((len(clients), len(clients)), np.nan)
        padded[np.ix_(present, present)] = gram
        return padded

    @abc.abstractmethod
    def _multiply(self, clients: Sequence[int], gram: NDArray[np.float64]) -> None:
        """Adds the inner products of all these clients' updates to the upper triangle of `gram`, which is 0."""

    def _check(self, client: int, vector: NDArray[Any]) -> None:
        if vector.ndim != 1 or vector.dtype != self.dtype:
            raise ValueError(
                f"the update of client {client} is {vector.dtype}{list(vector.shape)}, not flat {self.dtype}"
            )
        others = len(self.clients) - (client in self.clients)
        if others and len(vector) != self._length:
            raise ValueError(f"the update of client {client} has {len(vector)} numbers, the others' {self._length}")
        # min and max carry NaN along and need no temporary of the update's size
        if len(vector) and not (np.isfinite(vector.min()) and np.isfinite(vector.max())):
            raise ValueError(f"the update of client {client} holds NaN or infinite values")

    def _spool(self) -> None:
        """Moves all updates into a file. If that fails, all updates stay in memory."""
        try:
            file: Any = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - close() closes it
        except OSError as error:
            raise self._refused(error) from error
        try:
            for client, vector in self._held.items():
                self._write(file, client, vector)
        except BaseException:
            file.close()
            self._rows.clear()
            raise
        self._file = file
        self._held.clear()

    @waiting_for_room
    def _write(self, file: FileIO, client: int, vector: NDArray[Any]) -> None:
        row = min({*range(len(self._rows) + 1)}.difference(self._rows.values()))  # the first that is nobody's
        rest = np.ascontiguousarray(vector).data.cast("B")
        offset = row * rest.nbytes
        try:
            while rest:
                written = os.pwrite(file.fileno(), rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError as error:
            raise self._refused(error) from error
        self._rows[client] = row

    def _read(self, client: int, first: int, into: NDArray[Any]) -> None:
        if self._file is None:
            into[...] = self._held[client][first : first + len(into)]
            return
        rest = into.data.cast("B")
        offset = self.dtype.itemsize * (self._rows[client] * self._length + first)
        try:
            while rest:
                read = os.preadv(self._file.fileno(), [rest], offset)
                if not read:
                    raise OSError(None, "the file ends too early")
                rest, offset = rest[read:], offset + read
        except OSError as error:
            raise RunError(
                f"updates spooled in {self._directory} cannot be read: {error.strerror}", "check that disk"
            ) from error

    def _refused(self, error: OSError) -> RunError:
        return RunError(
            f"updates cannot be spooled in {self._directory}: {error.strerror}",
            "make room on that disk, or give --profile-option similarity=sketch",
        )


class UpdateSpool(Spool):
    """The updates of the clients as vectors: whole updates, or one layer of each."""

    def _multiply(self, clients: Sequence[int], gram: NDArray[np.float64]) -> None:
        for block in self.blocks(clients):
            _add_products(gram, block.astype(np.float64))


class SketchSpool(Spool):
    """Sketches of updates: the length of each update, and signs of random projections (docs/decisions, 0007).

    Inner products are estimated: if two vectors have the angle t, a share t / pi of their signs differs (Goemans and
    Williamson, JACM 1995).
    """

    dtype = np.dtype(np.uint8)

    def _multiply(self, clients: Sequence[int], gram: NDArray[np.float64]) -> None:
        for block in self.blocks(clients, slice(LENGTH_BYTES, None)):
            for left in range(0, block.shape[1], _BYTES):
                bits = np.unpackbits(block[:, left : left + _BYTES], axis=1)
                # Sums of so few ones and minus ones are exact in float32.
                _add_products(gram, np.float32(1) - 2 * bits.astype(np.float32))
        (block,) = self.blocks(clients, slice(LENGTH_BYTES))
        lengths = _lengths(block)
        for row, products in enumerate(gram):
            products *= math.pi / 2 / (8 * (self._length - LENGTH_BYTES))
            np.sin(products, out=products)
            products *= lengths[row] * lengths

    def _check(self, client: int, vector: NDArray[Any]) -> None:
        super()._check(client, vector)
        if len(vector) <= LENGTH_BYTES:
            raise ValueError(f"the sketch of client {client} has {len(vector)} bytes, which leaves none for signs")
        (length,) = _lengths(vector[None, :LENGTH_BYTES])
        if not 0 <= length < _LONGEST:
            raise ValueError(f"the sketch of client {client} says that its update is {length} long")


def _save(path: Path, vector: NDArray[Any]) -> None:
    """As `numpy.save`, whose error for a full disk does not say that it is full."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    with path.open("wb", buffering=0) as file:
        write_all(file, header.getvalue())
        write_all(file, vector.view(np.uint8).data)


def _lengths(shown: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The lengths of N updates, shape (N,), from the first bytes of their sketches."""
    return np.frombuffer(shown.tobytes(), "<f8")


def _add_products(gram: NDArray[np.float64], rows: NDArray[np.floating]) -> None:
    """Adds the inner products of all rows to `gram`: to its whole upper triangle, and to a part of the lower one."""
    for row in range(0, len(rows), _ROWS):
        gram[row : row + _ROWS, row:] += rows[row : row + _ROWS] @ rows[row:].T
