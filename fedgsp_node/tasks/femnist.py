"""The task femnist: handwritten characters of 62 classes, from the JSON files of LEAF or one .npz file.

Each client is a writer.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedgsp.errors import DataError
from fedgsp.partitions import hold_out
from fedgsp.require import require
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.decoded import decoded, rows_of
from fedgsp_node.tasks.reading import check_classes, read_npz, reading

_VALIDATION_SHARE = 0.1
_PARTS = ("train", "test")
#: Model -> channels of its two convolutions, and units of its hidden layer.
_WIDTHS = {"leaf": (32, 64, 2048), "small": (8, 16, 128)}
_SHAPE = (28, 28)
_PIXELS = 784
_LEAF_FORM = "a JSON file as LEAF writes it (users, num_samples, user_data)"
_NPZ_FORM = "an .npz file with x_train and x_test (uint8), y_train, y_test, writer_train and writer_test"
_LABELS = "give FEMNIST with the labels of LEAF"
_DATA = "give the folder that holds LEAF's train/ and test/, or an .npz file"


class Owned(NamedTuple):
    """The samples of one part: images of shape (n, 28, 28), and the label and writer of each image, shape (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    writers: NDArray[np.int64]


class Femnist(Task):
    """One client per writer. Pixels are as in LEAF (paper 1.0, ink dark), or inverted with `ink=bright`, as in MNIST.

    docs/tasks.md describes the options. Raises DataError for missing or wrong files, TaskError for wrong options.
    """

    num_classes = 62
    extractor = "5"  # the second pooling
    data_is_repeatable = True

    def __init__(
        self,
        data: Path,
        writers: int | None = None,
        min_samples: int = 0,
        model: Literal["leaf", "small"] = "leaf",
        initialisation: Literal["pytorch", "leaf"] = "pytorch",
        ink: Literal["dark", "bright"] = "dark",
        validation: bool = False,
        seed: int = 0,
    ) -> None:
        self._widths = _WIDTHS[model]
        self._initialisation = initialisation
        self._bright = ink == "bright"
        self._validation = validation
        self._seed = seed
        self._train, self._test = _read(data)
        usable = _usable_writers(data, self._train, self._test, min_samples)
        count = len(usable) if writers is None else writers
        require(
            1 <= count <= len(usable),
            f"{count} writers cannot be drawn from {len(usable)} with at least {min_samples} samples in {data}",
            f"set writers to 1 .. {len(usable)}" if len(usable) else "lower min_samples",
        )
        #: Each client's number in the file: drawn without replacement, in the order of the file.
        self.writers = usable[np.sort(stream(seed, "femnist-writers").permutation(len(usable))[:count])]

    @property
    def num_clients(self) -> int:
        """The number of writers drawn."""
        return len(self.writers)

    def model(self) -> nn.Module:
        """LEAF's CNN, with 6,603,710 parameters; with `model=small` a narrower one of the same form, with 111,902."""
        first, second, hidden = self._widths
        model = nn.Sequential(
            nn.Conv2d(1, first, kernel_size=5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel_size=5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * 7 * 7, hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.num_classes),
        )
        if self._initialisation == "leaf":
            for layer in model:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    # The default of TensorFlow, which LEAF uses.
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        return model

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 1, 28, 28) from 0 to 1; labels as int64 of shape (n,)."""
        writer = int(self.writers[client])
        train = self._split(self._train, writer)
        if not self._validation:
            return ClientData(train, self._split(self._test, writer))
        parts = hold_out(train.y, _VALIDATION_SHARE, stream(self._seed, "validation", writer))
        return ClientData(*(Split(train.x[rows], train.y[rows]) for rows in parts))

    def _split(self, part: Owned, writer: int) -> Split:
        own = np.flatnonzero(part.writers == writer)
        images = rows_of(part.images, own)
        return Split(((255 - images if self._bright else images) / np.float32(255))[:, None], part.labels[own])


def _usable_writers(data: Path, train: Owned, test: Owned, min_samples: int) -> NDArray[np.int64]:
    """Ascending numbers of writers with a training sample, and with `min_samples` samples in both parts together."""
    DataError.require(
        np.isin(train.writers, test.writers).any(),
        f"no writer of {data} is in both parts",
        "divide the data by sample, not by user (LEAF: -t sample)",
    )
    count = int(max(train.writers.max(), test.writers.max())) + 1
    trained, tested = (np.bincount(part.writers, minlength=count) for part in (train, test))
    return np.asarray(np.flatnonzero((trained > 0) & (trained + tested >= min_samples)), np.int64)


def _read(data: Path) -> list[Owned]:
    """The training part and the test part, in which a writer has the same number; DataError for unusable data."""
    DataError.require(data.exists(), f"{data} does not exist", _DATA)
    if data.is_dir():
        files = [path for part in _PARTS for path in _leaf_files(data / part)]
        held = decoded("femnist-leaf", files, lambda: _flat(_read_folder(data)))
    else:
        held = decoded("femnist", [data], lambda: _flat(_read_npz(data)))
    return [Owned(*(held[f"{part}-{key}"] for key in Owned._fields)) for part in _PARTS]


def _flat(owned: list[Owned]) -> dict[str, NDArray[Any]]:
    return {f"{part}-{key}": getattr(own, key) for part, own in zip(_PARTS, owned, strict=True) for key in own._fields}


def _read_npz(path: Path) -> list[Owned]:
    held = read_npz(path, [f"{key}_{part}" for part in _PARTS for key in ("x", "y", "writer")])
    return [_owned(path, part, held) for part in _PARTS]


def _owned(path: Path, part: str, held: dict[str, NDArray[Any]]) -> Owned:
    images = held[f"x_{part}"]
    DataError.require(
        images.dtype == np.uint8 and images.shape[1:] == _SHAPE,
        f"{path}: x_{part} has dtype {images.dtype} and shape {images.shape}, not uint8 and (n, 28, 28)",
        f"give {_NPZ_FORM}",
    )
    for key in (f"y_{part}", f"writer_{part}"):
        DataError.require(
            held[key].dtype.kind in "iu" and held[key].shape == images.shape[:1],
            f"{path}: {key} has dtype {held[key].dtype} and shape {held[key].shape} for {len(images)} images",
            f"give {_NPZ_FORM}",
        )
    labels, writers = (held[f"{key}_{part}"].astype(np.int64) for key in ("y", "writer"))
    check_classes(path, labels, Femnist.num_classes, _LABELS)
    if (writers < 0).any():
        raise DataError(f"{path}: writer_{part} contains the number {writers.min()}", "number the writers from 0")
    return Owned(images, labels, writers)


def _read_folder(folder: Path) -> list[Owned]:
    """Reads `train/*.json` and `test/*.json`. Writers are numbered in the order of their names."""
    parts = [_read_leaf(folder / part) for part in _PARTS]
    numbers = {user: number for number, user in enumerate(sorted({user for users in parts for user in users}))}
    owned = []
    for users in parts:
        order = sorted(users)
        # A part may have no users.
        images = np.concatenate([np.empty((0, *_SHAPE), np.uint8), *(users[user][0] for user in order)])
        labels = np.concatenate([np.empty(0, np.int64), *(users[user][1] for user in order)])
        writers = np.concatenate(
            [np.empty(0, np.int64), *(np.full(len(users[user][1]), numbers[user]) for user in order)]
        )
        owned.append(Owned(images, labels, writers))
    return owned


def _leaf_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.json"))
    DataError.require(paths, f"{folder} holds no .json file", _DATA)
    return paths


def _read_leaf(folder: Path) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """User -> (images, labels), from all files of one part. The samples of a user may be in several files."""
    pieces = defaultdict(list)
    for path in _leaf_files(folder):
        with reading(path, _LEAF_FORM), path.open(encoding="utf-8") as file:
            content = json.load(file)
        held = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(held, dict):
            raise DataError(f"{path} has no object user_data", f"give {_LEAF_FORM}")
        # Converted to bytes before the next file is read: as Python floats the pixels need thirty times the memory.
        for user, samples in held.items():
            pieces[user].append(_user(path, user, samples))
    return {
        user: (np.concatenate([x for x, _ in own]), np.concatenate([y for _, y in own]))
        for user, own in pieces.items()
    }


def _user(path: Path, user: str, samples: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        x = np.asarray(samples["x"], np.float64).reshape(len(samples["x"]), _PIXELS)
        y = np.asarray(samples["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: user {user!r} lacks a list x with {_PIXELS} numbers per image, or a list y ({error!r})",
            f"give {_LEAF_FORM}",
        ) from error
    DataError.require(
        y.shape == (len(x),) and (len(y) == 0 or y.dtype.kind in "iu"),
        f"{path}: user {user!r} has {len(x)} images, but not one whole-number label for each",
        f"give {_LEAF_FORM}",
    )
    DataError.require(
        ((x >= 0) & (x <= 1)).all(),
        f"{path}: user {user!r} has pixels outside 0 .. 1",
        f"give {_LEAF_FORM}",
    )
    check_classes(path, y, Femnist.num_classes, _LABELS)
    # This is exact, because LEAF's pixels are bytes divided by 255.
    return np.rint(255 * x).astype(np.uint8).reshape(-1, *_SHAPE), y.astype(np.int64)
