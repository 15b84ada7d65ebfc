"""An example of a user's task: breast cancer screening in several clinics, with data that scikit-learn contains.

In this directory, name it with `--task breast_cancer:Clinics`. `--task-option clinics=6` sets the number of clinics.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

from fedgsp import ClientData, Split, Task


class Clinics(Task):
    num_classes = 2

    def __init__(self, clinics: int = 8):
        x, y = load_breast_cancer(return_X_y=True)
        # Real clinics would have to agree on means and deviations. Here they are computed from all data.
        self.x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
        self.y = y
        # Clinics differ in the size of tumours, so most clinics have mainly benign or mainly malignant tumours.
        self.rows = np.array_split(np.argsort(x[:, 0], kind="stable"), clinics)

    @property
    def num_clients(self) -> int:
        return len(self.rows)

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def data(self, client: int) -> ClientData:
        rows = self.rows[client]
        test = np.arange(len(rows)) % 4 == 0
        return ClientData(*(Split(self.x[rows[part]], self.y[rows[part]]) for part in (~test, test)))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.05)
