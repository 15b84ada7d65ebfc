"""The tasks mnist and fashion_mnist: 28 x 28 grey images of 10 classes, divided among clients."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedgsp.task import ClientData, Split
from fedgsp_node.tasks.dealing import DealtTask, Published, SplitName, deal
from fedgsp_node.tasks.reading import labelled, read_idx

_SHAPE = (28, 28)
_FORM = (
    "a folder with the four .gz files as published,"
    " or an .npz file with x_train (uint8), y_train, x_test (uint8) and y_test"
)
#: Value of the option `normalise` -> mean and deviation: none, HCCT's, Fashion-MNIST's training images (FedCollab).
_SCALES: dict[bool | str, tuple[np.float32, np.float32]] = {
    False: (np.float32(0), np.float32(1)),
    True: (np.float32(0.5), np.float32(0.5)),
    "standard": (np.float32(0.2860), np.float32(0.3530)),
}


class GreyImages(DealtTask):
    """Divides the training file among clients. They test on the test file, or on a part of their own samples.

    docs/tasks.md describes the options. Raises DataError for missing or wrong files, TaskError for wrong options.
    """

    data_is_repeatable = True

    def __init__(
        self,
        data: Path,
        clients: int | None = None,
        partition: str = "dirichlet",
        alpha: float | None = None,
        min_size: int | None = None,
        shards_per_client: int | None = None,
        shards: int | None = None,
        test_share: float | None = None,
        decay: float | None = None,
        split: SplitName | None = None,
        train_share: float | None = None,
        model: Literal["perceptron", "hcct"] = "perceptron",
        double_softmax: bool = False,
        normalise: bool | Literal["standard"] = False,
        seed: int = 0,
    ) -> None:
        self._model = model
        self.extractor = "2" if model == "hcct" else "4"  # the last ReLU
        self._double_softmax = double_softmax
        self._mean, self._deviation = _SCALES[normalise]
        self._dealt = deal(
            data,
            _FILES,
            self.num_classes,
            partition,
            clients,
            split,
            train_share,
            {
                **{"alpha": alpha, "min_size": min_size, "shards_per_client": shards_per_client, "shards": shards},
                **{"test_share": test_share, "decay": decay},
            },
            seed,
        )

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
        # HCCT's release gives probabilities to the cross-entropy loss, which applies the softmax a second time.
        return nn.Sequential(*layers, nn.Softmax(dim=1)) if self._double_softmax else nn.Sequential(*layers)

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 1, 28, 28), from 0 to 1 unless normalised; labels as int64 of shape (n,)."""
        return self._dealt.client(client, self._scaled)

    def _scaled(self, images: NDArray[Any]) -> NDArray[np.float32]:
        return ((images.astype(np.float32) / np.float32(255))[:, None] - self._mean) / self._deviation


def _read(paths: list[Path]) -> Split:
    images, labels = paths
    return labelled(images, read_idx(images, 3), [_SHAPE], labels, read_idx(labels, 1), GreyImages.num_classes, _FORM)


_FILES = Published(
    name="grey",
    form=_FORM,
    files={
        "train": ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
        "test": ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"],
    },
    read=_read,
    shape=_SHAPE,
    clients=20,
    split="official",
    train_share=1.0,
)
