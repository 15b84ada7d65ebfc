"""Divides a published data set, which has a training file and a test file, among clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError
from fedgsp.partitions import Indices, accepted_options, cut_by_label, hold_out, partition_indices
from fedgsp.require import require
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.decoded import decoded_split, rows_of
from fedgsp_node.tasks.reading import read_part
from fedgsp_node.tasks.shifts import SHIFTS, client_type, shifted_rows

#: Where a client's test part comes from: the data set's test file, or the client's samples of the training file.
SplitName: TypeAlias = Literal["official", "own"]

#: Default number of clients if the partition is a shift.
SHIFT_CLIENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A data set as it is published, as several files or one .npz file; and default values of its task's options."""

    #: Names its entries in the cache of decoded files.
    name: str
    #: For errors: the folder or file that a user must give.
    form: str
    #: The files of the training part and of the test part.
    files: dict[Literal["train", "test"], list[str]]
    #: Reads the files of one part.
    read: Callable[[list[Path]], Split]
    #: Shape of one image in an .npz file.
    shape: tuple[int, ...]
    #: These three are not used if the partition is a shift.
    clients: int
    split: SplitName
    train_share: float


class Joined:
    """The samples of several files, numbered one file after the other. Only requested rows are copied."""

    def __init__(self, files: Sequence[Split]) -> None:
        self._files = files
        self.y = np.concatenate([file.y for file in files])

    def rows(self, rows: Indices) -> NDArray[Any]:
        """A copy of the inputs of the samples `rows`, shape (len(rows), ...)."""
        first = self._files[0].x
        found = np.empty((len(rows), *first.shape[1:]), first.dtype)
        start = 0
        for file in self._files:
            here = (rows >= start) & (rows < start + len(file))
            found[here] = rows_of(file.x, rows[here] - start)
            start += len(file)
        return found


@dataclass(frozen=True, slots=True)
class Dealt:
    """Which samples belong to which client. Samples are only converted for the model when a client is requested."""

    train: Split | Joined
    test: Split | Joined
    #: (Rows of `train`, rows of `test`) of each client.
    rows: list[tuple[Indices, Indices]]
    #: Gets a client and its samples, and returns the samples as a shift changes them.
    change: Callable[[int, Split], Split] | None = None
    #: Share of the training samples of each client that are for validation.
    validation_share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            0 <= self.validation_share < 1,
            f"validation_share is {self.validation_share}",
            "give a number from 0 to below 1, for example 0.2",
        )

    def client(self, client: int, scaled: Callable[[NDArray[Any]], NDArray[np.float32]]) -> ClientData:
        """The samples of one client. `scaled` converts the inputs for the model, then the shift is applied."""
        parts, (train_rows, test_rows) = [], self.rows[client]
        held: list[tuple[Split | Joined, Indices]] = []
        if self.validation_share:
            rng = stream(self.seed, "validation-part", client)
            train, validation = hold_out(self.train.y[train_rows], self.validation_share, rng)
            held, train_rows = [(self.train, train_rows[validation])], train_rows[train]
        for samples, rows in ((self.train, train_rows), (self.test, test_rows), *held):
            x = samples.rows(rows) if isinstance(samples, Joined) else rows_of(samples.x, rows)
            own = Split(scaled(x), samples.y[rows])
            parts.append(own if self.change is None else self.change(client, own))
        return ClientData(*parts)


class DealtTask(Task):
    """A task of ten classes whose samples are divided among clients by the options of its constructor."""

    num_classes = 10
    _dealt: Dealt

    @property
    def num_clients(self) -> int:
        """The option `clients`, or its default."""
        return len(self._dealt.rows)


def deal(
    data: Path,
    usual: Published,
    classes: int,
    partition: str,
    clients: int | None,
    split: SplitName | None,
    train_share: float | None,
    numbers: Mapping[str, float | None],
    seed: int,
) -> Dealt:
    """Reads the files that `split` needs, and divides the training file by the partition.

    A shift divides both files together, and accepts neither `split` nor `train_share`. Raises TaskError for wrong
    options, and DataError for missing or wrong files in `data`.
    """
    DataError.require(data.exists(), f"{data} does not exist", f"give {usual.form}")

    def read(part: Literal["train", "test"]) -> Split:
        if not data.is_dir():
            return decoded_split(
                f"{usual.name}-{part}", [data], lambda: read_part(data, part, [usual.shape], classes, usual.form)
            )
        paths = [data / name for name in usual.files[part]]
        return decoded_split(f"{usual.name}-{part}", paths, lambda: usual.read(paths))

    if partition in SHIFTS:
        return deal_shifted(
            Joined([read("train"), read("test")]),
            classes,
            partition,
            clients,
            {"split": split, "train_share": train_share, **numbers},
            seed,
        )
    train = read("train")
    parts = partition_indices(
        partition, train.y, usual.clients if clients is None else clients, stream(seed, "partition"), numbers, SHIFTS
    )
    train_share = usual.train_share if train_share is None else train_share
    if (split or usual.split) == "own":
        require(
            0 < train_share < 1,
            f"train_share is {train_share}, which leaves no samples for training or none for testing",
            "with split=own, give a number between 0 and 1, for example 0.2",
        )
        return Dealt(train, train, own_rows(train.y, parts, 1 - train_share, seed))
    test = read("test")
    return Dealt(train, test, _official(train.y, test.y, parts, train_share, seed))


def deal_shifted(
    samples: Split | Joined, classes: int, partition: str, clients: int | None, options: Mapping[str, Any], seed: int
) -> Dealt:
    """Divides all samples of a data set by a shift, by default among 20 clients; TaskError for wrong options."""
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
    """(Training rows, test rows) of each client, from its rows in `parts`.

    The share `test_share` of a client's samples is for testing, with the same label distribution as its part.
    """
    rows = []
    for client, part in enumerate(parts):
        train, test = hold_out(labels[part], test_share, stream(seed, "test-part", client))
        rows.append((part[train], part[test]))
    return rows


def _official(
    labels: NDArray[Any], test_labels: NDArray[Any], parts: list[Indices], train_share: float, seed: int
) -> list[tuple[Indices, Indices]]:
    require(0 < train_share <= 1, f"train_share is {train_share}", "give a number above 0 and at most 1")
    train = [
        stream(seed, "train-share", client).permutation(part)[: max(1, round(train_share * len(part)))]
        for client, part in enumerate(parts)
    ]
    # Every sample of the test file belongs to exactly one client. So the sample-weighted mean over all clients is the
    # accuracy on the test file, which can be compared with published figures.
    return list(zip(train, _deal_alike(labels, parts, test_labels, stream(seed, "test-part")), strict=True))


def _deal_alike(
    labels: NDArray[Any], parts: list[Indices], others: NDArray[Any], rng: np.random.Generator
) -> list[Indices]:
    """Divides the indices of `others` among clients: each class in proportion to the clients' samples of it."""
    classes = int(max(labels.max(), others.max())) + 1
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])

    def cuts(label: int, count: int) -> Any:
        held = counts[:, label] if counts[:, label].any() else np.ones(len(parts))
        return np.rint(np.cumsum(held)[:-1] / held.sum() * count)

    return cut_by_label(others, range(classes), cuts, rng)
