"""Several labels per sample: which of five findings a report has, at hospitals that see other mixes of findings.

In this directory, name it with `--task several_labels:Reports`. The data are made up by scikit-learn.
"""

import numpy as np
import torch
from sklearn.datasets import make_multilabel_classification

from fedgsp import ClientData, Split, Task


class Reports(Task):
    num_classes = 5
    score, combine = "f1", {"f1": "ratio"}

    def __init__(self, clients: int = 6, samples: int = 900, seed: int = 0) -> None:
        self.num_clients = clients
        x, y = make_multilabel_classification(samples, n_classes=self.num_classes, random_state=seed)
        x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
        order = np.argsort(y @ 2 ** np.arange(self.num_classes), kind="stable")  # alike mixes go to one hospital
        self.parts = [(x[rows], y[rows].astype(np.float32)) for rows in np.array_split(order, clients)]

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(20, self.num_classes)

    def data(self, client: int) -> ClientData:
        (x, y), test = self.parts[client], np.arange(len(self.parts[client][1])) % 4 == 0
        return ClientData(Split(x[~test], y[~test]), Split(x[test], y[test]))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, tuple[float, float]]:
        found = (outputs > 0).float()
        return {"f1": (2 * float((found * targets).sum()), float(found.sum() + targets.sum()))}

    def class_counts(self, train: Split) -> np.ndarray:
        return train.y.sum(axis=0).astype(np.int64)
