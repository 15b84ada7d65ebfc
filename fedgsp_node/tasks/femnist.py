"""The task femnist: handwritten characters of 62 classes (LEAF's FEMNIST). Each client is a writer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedgsp.errors import DataError, TaskError
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.decoded import rows_of
from fedgsp_node.tasks.femnist_files import CLASSES, Owned, read_files
from fedgsp_node.tasks.partitions import hold_out

_VALIDATION_SHARE = 0.1


class Femnist(Task):
    """One client per writer. Pixels are as in LEAF (paper 1.0, ink dark), or inverted with `ink=bright`, as in MNIST.

    docs/tasks.md describes the options. Raises DataError for missing or wrong files, TaskError for wrong options.
    """

    num_classes = CLASSES
    extractor = "5"  # the second pooling
    data_is_repeatable = True

    def __init__(
        self,
        data: Path,
        writers: int | None = None,
        min_samples: int = 0,
        initialisation: Literal["pytorch", "leaf"] = "pytorch",
        ink: Literal["dark", "bright"] = "dark",
        validation: bool = False,
        seed: int = 0,
    ) -> None:
        self._initialisation = initialisation
        self._bright = ink == "bright"
        self._validation = validation
        self._seed = seed
        self._files = read_files(data)
        usable = _usable_writers(data, self._files.train, self._files.test, min_samples)
        count = len(usable) if writers is None else writers
        if not 1 <= count <= len(usable):
            raise TaskError(
                f"{count} writers cannot be drawn from {len(usable)} with at least {min_samples} samples in {data}",
                f"set writers to 1 .. {len(usable)}" if len(usable) else "lower min_samples",
            )
        # Drawn without replacement, then numbered in the order of the file.
        self._writers = usable[np.sort(stream(seed, "femnist-writers").permutation(len(usable))[:count])]

    @property
    def num_clients(self) -> int:
        """The number of writers drawn."""
        return len(self._writers)

    def model(self) -> nn.Module:
        """LEAF's CNN, with 6,603,710 parameters."""
        model = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 2048),
            nn.ReLU(),
            nn.Linear(2048, CLASSES),
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
        writer = int(self._writers[client])
        train = self._split(self._files.train, writer)
        if not self._validation:
            return ClientData(train, self._split(self._files.test, writer))
        kept, held = hold_out(train.y, _VALIDATION_SHARE, stream(self._seed, "validation", writer))
        return ClientData(Split(train.x[kept], train.y[kept]), Split(train.x[held], train.y[held]))

    def _split(self, part: Owned, writer: int) -> Split:
        own = np.flatnonzero(part.writers == writer)
        images = rows_of(part.images, own)
        return Split(((255 - images if self._bright else images) / np.float32(255))[:, None], part.labels[own])


def _usable_writers(data: Path, train: Owned, test: Owned, min_samples: int) -> NDArray[np.int64]:
    """Ascending numbers of writers with a training sample, and with `min_samples` samples in both parts together."""
    if not np.isin(train.writers, test.writers).any():
        raise DataError(
            f"no writer of {data} is in both parts", "divide the data by sample, not by user (LEAF: -t sample)"
        )
    count = int(max(train.writers.max(), test.writers.max())) + 1
    trained, tested = (np.bincount(part.writers, minlength=count) for part in (train, test))
    usable: NDArray[np.int64] = np.flatnonzero((trained > 0) & (trained + tested >= min_samples))
    return usable
