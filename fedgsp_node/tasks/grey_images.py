"""MNIST and Fashion-MNIST: 28 x 28 grey images of 10 classes, dealt to clients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import nn

from fedgsp.errors import DataError
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.dealing import SplitName, deal
from fedgsp_node.tasks.reading import check_images, check_labels, read_idx, read_npz

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_SIDE = 28
_FORM = "a folder with the four .gz files as published, or an .npz of uint8 x_train, y_train, x_test, y_test"


class GreyImages(Task):
    """The training file dealt to clients; they test on the test file, or on samples of their own."""

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
        split: SplitName = "official",
        train_share: float = 1.0,
        model: Literal["perceptron", "hcct"] = "perceptron",
        double_softmax: bool = False,
        normalise: bool = False,
        seed: int = 0,
    ) -> None:
        self._model = model
        self._double_softmax = double_softmax
        self._normalise = normalise
        numbers = {"alpha": alpha, "min_size": min_size, "shards_per_client": shards_per_client, "shards": shards}
        if not data.exists():
            raise DataError(f"{data} does not exist", f"give {_FORM}")
        read = partial(_read_folder if data.is_dir() else _read_npz, data)
        self._dealt = deal(read, split, partition, clients, numbers, train_share, seed)

    @property
    def num_clients(self) -> int:
        """As many as were asked for."""
        return len(self._dealt)

    def model(self) -> nn.Module:
        """A perceptron: 784-200-200-10 (199,210 parameters), or HCCT's 784-64-10 with dropout (50,890)."""
        if self._model == "hcct":
            layers = [nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)]
        else:
            layers = [
                nn.Flatten(),
                nn.Linear(784, 200),
                nn.ReLU(),
                nn.Linear(200, 200),
                nn.ReLU(),
                nn.Linear(200, 10),
            ]
        # HCCT's release feeds probabilities to the cross-entropy, which takes the softmax of them once more.
        return nn.Sequential(*layers, nn.Softmax(dim=1)) if self._double_softmax else nn.Sequential(*layers)

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 1, 28, 28) in 0..1, in -1..1 if normalised; labels as int64."""
        own = self._dealt.client(client)
        return ClientData(self._scaled(own.train), self._scaled(own.test))

    def _scaled(self, images: Split) -> Split:
        x = (images.x.astype(np.float32) / 255).reshape(-1, 1, _SIDE, _SIDE)
        return Split((x - 0.5) / 0.5 if self._normalise else x, images.y)


def _read_folder(folder: Path, part: Literal["train", "test"]) -> Split:
    official = {"train": "train", "test": "t10k"}[part]
    images = folder / f"{official}-images-idx3-ubyte.gz"
    labels = folder / f"{official}-labels-idx1-ubyte.gz"
    return _checked(images, read_idx(images, 3), labels, read_idx(labels, 1))


def _read_npz(path: Path, part: Literal["train", "test"]) -> Split:
    held = read_npz(path, [f"x_{part}", f"y_{part}"])
    return _checked(path, held[f"x_{part}"], path, held[f"y_{part}"])


def _checked(image_path: Path, images: NDArray[Any], label_path: Path, labels: NDArray[Any]) -> Split:
    check_images(image_path, images, [(_SIDE, _SIDE)], _FORM)
    return Split(images, check_labels(label_path, labels, len(images), GreyImages.num_classes, _FORM))
