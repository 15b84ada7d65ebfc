"""A published data set, one training and one test file, dealt to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedgsp.errors import TaskError
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split
from fedgsp_node.tasks.decoded import rows_of
from fedgsp_node.tasks.partitions import accepted_options, hold_out, partition_indices
from fedgsp_node.tasks.shifts import SHIFTS, client_type, shifted_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    Indices: TypeAlias = NDArray[np.int64]

#: Where a client's test part comes from: the official test file, or its own samples of the training file.
SplitName: TypeAlias = Literal["official", "own"]

SHIFT_CLIENTS = 20


@dataclass(frozen=True, slots=True)
class Usual:
    """What options of a task that are left out stand for, unless the partition is a shift."""

    clients: int
    split: SplitName
    train_share: float


class Joined:
    """Samples of several files, one after the other; only those rows are copied that are asked for."""

    def __init__(self, files: Sequence[Split]) -> None:
        self._files = files
        self.y = np.concatenate([file.y for file in files])

    def rows(self, rows: Indices) -> NDArray[Any]:
        """The inputs of some samples."""
        first = self._files[0].x
        found = np.empty((len(rows), *first.shape[1:]), first.dtype)
        start = 0
        for file in self._files:
            here = (rows >= start) & (rows < start + len(file))
            found[here] = rows_of(file.x, rows[here] - start)
            start += len(file)
        return found


class Dealt:
    """The rows of each client; samples stay as they were read until a client is asked for."""

    def __init__(
        self,
        train: Split | Joined,
        test: Split | Joined,
        rows: list[tuple[Indices, Indices]],
        change: Callable[[int, Split], Split] | None = None,
    ) -> None:
        """`rows` are those of `train` and `test` that each client has; `change` is what a shift makes of them."""
        self._train = train
        self._test = test
        self._rows = rows
        self._change = change

    def __len__(self) -> int:
        return len(self._rows)

    def client(self, client: int, scaled: Callable[[NDArray[Any]], NDArray[np.float32]]) -> ClientData:
        """The samples of one client, their inputs as `scaled` makes them for the model, then shifted."""
        parts = []
        for samples, rows in zip((self._train, self._test), self._rows[client], strict=True):
            x = samples.rows(rows) if isinstance(samples, Joined) else rows_of(samples.x, rows)
            own = Split(scaled(x), samples.y[rows])
            parts.append(own if self._change is None else self._change(client, own))
        return ClientData(*parts)


def deal(
    read: Callable[[Literal["train", "test"]], Split],
    classes: int,
    usual: Usual,
    partition: str,
    clients: int | None,
    split: SplitName | None,
    train_share: float | None,
    numbers: Mapping[str, float | None],
    seed: int,
) -> Dealt:
    """Reads the files that `split` needs, and deals the training file by the partition; raises UserError.

    A shift deals both files together, and takes no `split` and no `train_share`.
    """
    if partition in SHIFTS:
        options = {"split": split, "train_share": train_share, **numbers}
        return deal_shifted(Joined([read("train"), read("test")]), classes, partition, clients, options, seed)
    train = read("train")
    parts = partition_indices(
        partition, train.y, usual.clients if clients is None else clients, stream(seed, "partition"), numbers
    )
    train_share = usual.train_share if train_share is None else train_share
    if (split or usual.split) == "own":
        if not 0 < train_share < 1:
            raise TaskError(
                f"train_share is {train_share}, of samples that are tested on too",
                "with split=own give a number between 0 and 1, for example 0.2",
            )
        return Dealt(train, train, own_rows(train.y, parts, 1 - train_share, seed))
    test = read("test")
    return Dealt(train, test, _official(train.y, test.y, parts, train_share, seed))


def deal_shifted(
    samples: Split | Joined, classes: int, partition: str, clients: int | None, options: Mapping[str, Any], seed: int
) -> Dealt:
    """All samples of a data set, dealt by a shift to 20 clients if not told how many; raises TaskError."""
    shift = SHIFTS[partition]
    clients = SHIFT_CLIENTS if clients is None else clients
    numbers = accepted_options(partition, ("test_share", "decay"), options)
    rows = shifted_rows(shift, samples.y, classes, clients, stream(seed, "partition"), **numbers)

    def change(client: int, own: Split) -> Split:
        return shift.change(client_type(client, clients), own, classes)

    return Dealt(samples, samples, rows, change)


def own_rows(
    labels: NDArray[Any], parts: list[Indices], test_share: float, seed: int
) -> list[tuple[Indices, Indices]]:
    """The rows that each client trains and tests on: `test_share` of its part is tested on, in its own label mix."""
    rows = []
    for client, part in enumerate(parts):
        train, test = hold_out(labels[part], test_share, stream(seed, "test-part", client))
        rows.append((part[train], part[test]))
    return rows


def _official(
    labels: NDArray[Any], test_labels: NDArray[Any], parts: list[Indices], train_share: float, seed: int
) -> list[tuple[Indices, Indices]]:
    if not 0 < train_share <= 1:
        raise TaskError(f"train_share is {train_share}", "give a number above 0 and up to 1")
    train = [
        stream(seed, "train-share", client).permutation(part)[: max(1, round(train_share * len(part)))]
        for client, part in enumerate(parts)
    ]
    # Every official test image goes to exactly one client, whose label mix it follows: the sample-weighted mean
    # over all clients is then the accuracy on the official test file, comparable with published figures.
    return list(zip(train, _deal_alike(labels, parts, test_labels, stream(seed, "test-part")), strict=True))


def _deal_alike(
    labels: NDArray[Any], parts: list[Indices], others: NDArray[Any], rng: np.random.Generator
) -> list[Indices]:
    """Indices into `others`, each to one client, every class in proportion to how many of it the client has."""
    classes = int(max(labels.max(), others.max())) + 1
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
    dealt: list[list[Indices]] = [[] for _ in parts]
    for label in range(classes):
        rows = rng.permutation(np.flatnonzero(others == label))
        held = counts[:, label] if counts[:, label].any() else np.ones(len(parts))
        cuts = np.rint(np.cumsum(held)[:-1] / held.sum() * len(rows)).astype(np.int64)
        for own, piece in zip(dealt, np.split(rows, cuts), strict=True):
            own.append(piece)
    return [np.concatenate(own) for own in dealt]
