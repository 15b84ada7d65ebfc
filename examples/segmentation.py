"""Segmentation: which pixels of an image belong to a lesion, at sites whose scanners differ in noise.

In this directory, name it with `--task segmentation:Scans`. The images are made up: discs in noise.
"""

import numpy as np
import torch

from fedgsp import ClientData, Split, Task
from fedgsp.seeds import stream


class Scans(Task):
    num_classes = 2
    score, combine = "dice", {"dice": "ratio", "iou": "ratio"}

    def __init__(self, clients: int = 4, images: int = 40, size: int = 24) -> None:
        self.num_clients, self.images, self.size = clients, images, size

    def model(self) -> torch.nn.Module:
        layers = torch.nn.Conv2d(1, 8, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 5, padding=2)
        return torch.nn.Sequential(*layers)  # returns (n, classes, height, width)

    def data(self, client: int) -> ClientData:
        rng = stream(0, "scans", client)
        places = np.mgrid[: self.size, : self.size][:, None]
        centres, radii = rng.uniform(4, self.size - 4, (2, self.images, 1, 1)), rng.uniform(2, 5, (self.images, 1, 1))
        y = (np.square(places - centres).sum(axis=0) < np.square(radii)).astype(np.int64)
        x = (y + (0.2 + 0.1 * client) * rng.standard_normal(y.shape))[:, None].astype(np.float32)
        cut = self.images // 4
        return ClientData(train=Split(x[cut:], y[cut:]), test=Split(x[:cut], y[:cut]))

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, tuple[float, float]]:
        found = outputs.argmax(dim=1)
        both, either = float((found & targets).sum()), float((found | targets).sum())
        return {"dice": (2 * both, both + either), "iou": (both, either)}  # numerators and denominators, summed

    def class_counts(self, train: Split) -> np.ndarray:
        return np.bincount(train.y.ravel(), minlength=2)
