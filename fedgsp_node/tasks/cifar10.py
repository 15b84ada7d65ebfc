"""The task cifar10: 32 x 32 colour images of 10 classes (CIFAR-10), divided among clients."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedgsp.seeds import derive
from fedgsp.task import ClientData, Split
from fedgsp_node.tasks.channels_last import ChannelsLast
from fedgsp_node.tasks.dealing import DealtTask, Published, SplitName, deal
from fedgsp_node.tasks.gradients import gradients_and_colours
from fedgsp_node.tasks.reading import check_labels, reading

_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
_DEVIATION = np.array([0.2023, 0.1994, 0.2010], np.float32)
_BLACK = -_MEAN / _DEVIATION
_BATCH_FORM = f"a batch file of CIFAR-10's binary version, with records of {_RECORD} bytes"
_FORM = (
    "the folder that holds data_batch_1.bin .. data_batch_5.bin and test_batch.bin,"
    " or an .npz file with x_train (uint8), y_train, x_test (uint8) and y_test"
)


class Cifar10(DealtTask):
    """Divides the training file among clients. They test on a part of their own samples, or on the test file.

    docs/tasks.md describes the options. Raises DataError for missing or wrong files, TaskError for wrong options.
    """

    data_is_repeatable = True

    def __init__(
        self,
        data: Path,
        clients: int | None = None,
        partition: str = "half_normal_shards",
        alpha: float | None = None,
        min_size: int | None = None,
        shards_per_client: int | None = None,
        shards: int | None = None,
        test_share: float | None = None,
        decay: float | None = None,
        split: SplitName | None = None,
        train_share: float | None = None,
        model: Literal["hcct", "fedcollab"] = "hcct",
        augment: bool | None = None,
        augment_test: bool = False,
        seed: int = 0,
    ) -> None:
        self._model = model
        self.extractor = "11" if model == "hcct" else "8"  # what is flattened
        self._augment_test = augment_test
        self._seed = seed
        # In feature_shift the rotation tells types of clients apart. Mirroring turns a rotation to the left into one
        # to the right, so an augmented image could belong to another type.
        self._augment = model == "hcct" and partition != "feature_shift" if augment is None else augment
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
        """HCCT's CNN (1,126,950 parameters) or FedCollab's CNN (122,570), behind the layer that augments images."""
        # Without augmentation another layer takes this place, so that the names of all tensors stay the same.
        return nn.Sequential(CropAndFlip(_BLACK) if self._augment else ChannelsLast(), *MODELS[self._model]())

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 3, 32, 32), standardised per channel; labels as int64 of shape (n,)."""
        dealt = self._dealt.client(client, _normalised)
        if not self._augment_test:
            return dealt
        generator = torch.Generator().manual_seed(derive(self._seed, "augmented-test", client))
        x = cropped_and_flipped(torch.from_numpy(dealt.test.x), _BLACK, generator=generator)
        return ClientData(dealt.train, Split(x.numpy(), dealt.test.y))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs of discriminators, shape (n, 252): brightness gradients and mean colours per cell of each image."""
        return gradients_and_colours(x)


def _hcct() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2048, 500),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(500, 10),
    ]


def _fedcollab() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 32, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    ]


#: Value of the option `model` -> a function that makes the layers behind the augmentation.
MODELS = {"fedcollab": _fedcollab, "hcct": _hcct}


class CropAndFlip(ChannelsLast):
    """Augments images with torch's global generator in training mode; always sets the layout of `ChannelsLast`."""

    #: The layer changes inputs at random (docs/tasks.md, Models).
    augments = True

    def __init__(self, black: NDArray[np.float32]) -> None:
        super().__init__()
        self._black = black  # not a buffer, because buffers are sent with the model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The images `x` of shape (n, channels, height, width), augmented in training mode."""
        return super().forward(cropped_and_flipped(x, self._black) if self.training else x)


def cropped_and_flipped(
    x: torch.Tensor, black: NDArray[np.float32], margin: int = 4, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Random crops of the images `x` of shape (n, channels, height, width), mirrored with probability 1/2.

    Each image first gets a border of `margin` pixels in the colour `black`, shape (channels,). The shape does not
    change. Without `generator`, torch's global generator is used.
    """
    count, channels, height, width = x.shape
    padded = torch.from_numpy(black)[:, None, None].repeat(count, 1, height + 2 * margin, width + 2 * margin)
    padded[:, :, margin:-margin, margin:-margin] = x
    down, right = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    columns = torch.arange(width).expand(count, width)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns) + right
    rows = torch.arange(height) + down
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def _normalised(images: NDArray[Any]) -> NDArray[np.float32]:
    x = (images.astype(np.float32) / 255 - _MEAN) / _DEVIATION
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _read(paths: list[Path]) -> Split:
    images, labels = zip(*map(_read_batch, paths), strict=True)
    return Split(np.concatenate(images), np.concatenate(labels))


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with reading(path, _BATCH_FORM):
        content = np.fromfile(path, np.uint8)
        if len(content) == 0 or len(content) % _RECORD:
            raise ValueError(f"its size is {len(content)} bytes")
    records = content.reshape(-1, _RECORD)
    labels = check_labels(path, records[:, 0], len(records), Cifar10.num_classes, _FORM)
    return records[:, 1:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1), labels


_FILES = Published(
    name="cifar10",
    form=_FORM,
    files={"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]},
    read=_read,
    shape=(_SIDE, _SIDE, 3),
    clients=10,
    split="own",
    train_share=0.2,
)
