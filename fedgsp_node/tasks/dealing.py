"""A published data set, one training and one test file, dealt to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedgsp.errors import TaskError
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split
from fedgsp_node.tasks.partitions import hold_out, partition_indices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import NDArray

    Indices: TypeAlias = NDArray[np.int64]

#: Where a client's test part comes from: the official test file, or its own samples of the training file.
SplitName: TypeAlias = Literal["official", "own"]


class Dealt:
    """The rows of each client; samples stay as they were read until a client is asked for."""

    def __init__(self, train: Split, test: Split | None, parts: list[Indices], train_share: float, seed: int) -> None:
        """`train_share` of each part is trained on. Tested on: `test`, dealt alike, or else the rest of the part."""
        self._train = train
        self._test = train if test is None else test
        if test is None:
            self._rows = _own(train.y, parts, train_share, seed)
        else:
            self._rows = _official(train.y, test.y, parts, train_share, seed)

    def __len__(self) -> int:
        return len(self._rows)

    def client(self, client: int) -> ClientData:
        """The samples of one client, as they were read."""
        train, test = self._rows[client]
        return ClientData(
            Split(self._train.x[train], self._train.y[train]), Split(self._test.x[test], self._test.y[test])
        )


def deal(
    read: Callable[[Literal["train", "test"]], Split],
    split: SplitName,
    partition: str,
    clients: int,
    numbers: Mapping[str, float | None],
    train_share: float,
    seed: int,
) -> Dealt:
    """Reads the files that `split` needs, and deals the training file by the partition; raises UserError."""
    train = read("train")
    test = read("test") if split == "official" else None
    parts = partition_indices(partition, train.y, clients, stream(seed, "partition"), numbers)
    return Dealt(train, test, parts, train_share, seed)


def _own(labels: NDArray[Any], parts: list[Indices], train_share: float, seed: int) -> list[tuple[Indices, Indices]]:
    if not 0 < train_share < 1:
        raise TaskError(
            f"train_share is {train_share}, of samples that are tested on too",
            "with split=own give a number between 0 and 1, for example 0.2",
        )
    rows = []
    for client, part in enumerate(parts):
        train, test = hold_out(labels[part], 1 - train_share, stream(seed, "test-part", client))
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
