r"""An example of images in folders, with augmentation: FOLDER/SITE/train/CLASS/*.png and FOLDER/SITE/test/CLASS/*.png.

Each site is a client. A node needs only the folders of its own sites, and all nodes name the same sites and classes.
Needs Pillow. In this directory, for two sites:

    top-server --task image_folder:Images --task-option data=FOLDER --task-option sites=north,south \
      --task-option classes=cat,dog --optimizer adamw --learning-rate 0.003 --clients 2 --beta 1 --local-nodes 2 \
      --listen 127.0.0.1:0
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedgsp import ClientData, Task


class Folder(torch.utils.data.Dataset[Any]):
    """Images as tensors of shape (3, size, size); a file is read when it is needed."""

    def __init__(self, folder: Path, classes: list[str], size: int) -> None:
        self.files = [(path, y) for y, name in enumerate(classes) for path in sorted((folder / name).glob("*.png"))]
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        path, y = self.files[number]
        image = Image.open(path).convert("RGB").resize((self.size, self.size))
        return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1), y


class Images(Task):
    local_options = ("data",)

    def __init__(self, data: Path, sites: str, classes: str, size: int = 32) -> None:
        self.folder, self.sites, self.classes, self.size = data, sites.split(","), classes.split(","), size
        self.num_clients, self.num_classes = len(self.sites), len(self.classes)

    def model(self) -> torch.nn.Module:
        layers = [torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.ReLU()]
        return torch.nn.Sequential(
            *layers, torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, self.num_classes)
        )

    def data(self, client: int) -> ClientData:
        site = self.folder / self.sites[client]
        return ClientData(*(Folder(site / part, self.classes, self.size) for part in ("train", "test")))

    def transform(self, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> tuple[Any, Any]:
        flipped = torch.rand(len(x), generator=generator) < 0.5
        x[flipped] = x[flipped].flip(-1)
        return x, y
