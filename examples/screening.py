"""F1 and the area under the ROC curve by hospital: breast cancer screening, with data of scikit-learn.

In this directory, name it with `--task screening:Hospitals`.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from fedgsp import ClientData, Split, Task


class Hospitals(Task):
    num_classes, num_clients = 2, 4
    score, combine = "f1", {"f1": "ratio", "auc": "clients"}
    client_names = ("North", "East", "South", "West")

    def __init__(self) -> None:
        x, y = load_breast_cancer(return_X_y=True)
        x, y = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), 1 - y  # 1 is malignant
        self.parts = [(x[rows], y[rows]) for rows in np.array_split(np.argsort(x[:, 0], kind="stable"), 4)]

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def data(self, client: int) -> ClientData:
        (x, y), test = self.parts[client], np.arange(len(self.parts[client][1])) % 4 == 0
        return ClientData(Split(x[~test], y[~test]), Split(x[test], y[test]))

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float | tuple[float, float]]:
        found, scores = outputs.argmax(dim=1), outputs[:, 1] - outputs[:, 0]
        f1 = 2 * float((found & targets).sum()), float(found.sum() + targets.sum())
        # without healthy or ill patients there is no curve: NaN, which is named and left out of the mean
        auc = roc_auc_score(targets, scores) if len(targets.unique()) == 2 else float("nan")
        return {"f1": f1, "auc": float(auc)}
