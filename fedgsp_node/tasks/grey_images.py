"""MNIST and Fashion-MNIST: 28 x 28 grey images of 10 classes, dealt to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fedgsp.errors import DataError, TaskError
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.partitions import partition_indices
from fedgsp_node.tasks.reading import read_idx, read_npz

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_SIDE = 28
_FORM = "a folder with the four .gz files as published, or an .npz of uint8 x_train, y_train, x_test, y_test"


class GreyImages(Task):
    """The training file dealt to clients, and the test file dealt to them in the same label mix."""

    num_classes = 10

    def __init__(
        self,
        data: Path,
        clients: int = 20,
        partition: str = "dirichlet",
        alpha: float | None = None,
        min_size: int | None = None,
        shards_per_client: int | None = None,
        shards: int | None = None,
        train_share: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not 0 < train_share <= 1:
            raise TaskError(f"train_share is {train_share}", "give a number above 0 and up to 1")
        numbers = {"alpha": alpha, "min_size": min_size, "shards_per_client": shards_per_client, "shards": shards}
        if not data.exists():
            raise DataError(f"{data} does not exist", f"give {_FORM}")
        read = _read_folder if data.is_dir() else _read_npz
        self._x_train, self._y_train, self._x_test, self._y_test = read(data)
        parts = partition_indices(partition, self._y_train, clients, stream(seed, "partition"), numbers)
        # Every official test image goes to exactly one client, whose label mix it follows: the sample-weighted mean
        # over all clients is then the accuracy on the official test file, comparable with published figures.
        self._test_rows = _deal_alike(self._y_train, parts, self._y_test, stream(seed, "test-part"))
        self._train_rows = [
            stream(seed, "train-share", client).permutation(part)[: max(1, round(train_share * len(part)))]
            for client, part in enumerate(parts)
        ]

    @property
    def num_clients(self) -> int:
        """As many as were asked for."""
        return len(self._train_rows)

    def model(self) -> nn.Module:
        """A perceptron of 784-200-200-10, 199,210 parameters."""
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 1, 28, 28) in 0..1, labels as int64."""
        return ClientData(
            _split(self._x_train, self._y_train, self._train_rows[client]),
            _split(self._x_test, self._y_test, self._test_rows[client]),
        )


def _split(x: NDArray[np.uint8], y: NDArray[np.int64], rows: NDArray[np.int64]) -> Split:
    return Split((x[rows] / np.float32(255)).reshape(-1, 1, _SIDE, _SIDE), y[rows])


def _deal_alike(
    labels: NDArray[np.int64], parts: list[NDArray[np.int64]], others: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Indices into `others`, each to one client, every class in proportion to how many of it the client has."""
    classes = GreyImages.num_classes
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
    dealt: list[list[NDArray[np.int64]]] = [[] for _ in parts]
    for label in range(classes):
        rows = rng.permutation(np.flatnonzero(others == label))
        held = counts[:, label] if counts[:, label].any() else np.ones(len(parts))
        cuts = np.rint(np.cumsum(held)[:-1] / held.sum() * len(rows)).astype(np.int64)
        for own, piece in zip(dealt, np.split(rows, cuts), strict=True):
            own.append(piece)
    return [np.concatenate(own) for own in dealt]


_Arrays = tuple["NDArray[np.uint8]", "NDArray[np.int64]", "NDArray[np.uint8]", "NDArray[np.int64]"]


def _read_folder(folder: Path) -> _Arrays:
    arrays: list[Any] = []
    for part in ("train", "t10k"):
        images = folder / f"{part}-images-idx3-ubyte.gz"
        labels = folder / f"{part}-labels-idx1-ubyte.gz"
        arrays += _checked(images, read_idx(images, 3), labels, read_idx(labels, 1))
    return arrays[0], arrays[1], arrays[2], arrays[3]


def _read_npz(path: Path) -> _Arrays:
    held = read_npz(path, ["x_train", "y_train", "x_test", "y_test"])
    x_train, y_train = _checked(path, held["x_train"], path, held["y_train"])
    x_test, y_test = _checked(path, held["x_test"], path, held["y_test"])
    return x_train, y_train, x_test, y_test


def _checked(
    image_path: Path, images: NDArray[Any], label_path: Path, labels: NDArray[Any]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (_SIDE, _SIDE) or len(images) == 0:
        raise DataError(
            f"{image_path} holds images of {images.dtype}, shape {images.shape}, not of uint8, shape (n, 28, 28)",
            f"give {_FORM}",
        )
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise DataError(
            f"{label_path} holds labels of {labels.dtype}, shape {labels.shape}, for {len(images)} images",
            f"give {_FORM}",
        )
    wrong = labels[(labels < 0) | (labels >= GreyImages.num_classes)]
    if len(wrong):
        raise DataError(f"{label_path} has the label {wrong[0]}, outside 0 .. 9", f"give {_FORM}")
    return images, labels.astype(np.int64)
