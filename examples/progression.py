"""A regression on a table: how diabetes progresses within a year, at clinics whose patients differ in age.

In this directory, name it with `--task progression:Clinics`. The data come with scikit-learn.
"""

import numpy as np
import torch
from sklearn.datasets import load_diabetes

import fedgsp
from fedgsp import ClientData, Split, Task


class Clinics(Task):
    num_clients = 6
    score, combine = "-mae", {"rmse": "root-mean-square"}
    edges = (87, 140.5, 211.5)  # quartiles of a published table; scheme fedgsp groups by the patients between them
    num_classes = len(edges) + 1

    def __init__(self) -> None:
        x, y = load_diabetes(return_X_y=True)
        x, y = (x / x.std(axis=0)).astype(np.float32), y.astype(np.float32)
        self.parts = [(x[rows], y[rows]) for rows in np.array_split(np.argsort(x[:, 0], kind="stable"), 6)]

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0))

    def data(self, client: int) -> ClientData:
        (x, y), test = self.parts[client], np.arange(len(self.parts[client][1])) % 4 == 0
        return ClientData(Split(x[~test], y[~test]), Split(x[test], y[test]))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs, targets / 100)

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        errors = 100 * outputs - targets
        return {"mae": float(errors.abs().mean()), "rmse": float(errors.square().mean().sqrt())}

    def class_counts(self, train: Split) -> np.ndarray:
        return fedgsp.histogram(train.y, self.edges)
