"""An example of a user's task: one CSV file per hospital, which only that hospital's node reads.

In this directory, name it with `--task hospital_csv:Patients`. On each node, `--task-option data=FOLDER` names the
folder with its `client-N.csv`. A file has a line of names, then per patient ten numbers and a diagnosis of 0 or 1.
"""

from pathlib import Path

import numpy as np
import torch

from fedgsp import ClientData, Split, Task
from fedgsp.errors import DataError


class Patients(Task):
    num_classes = 2
    num_clients = 4

    def __init__(self, data: Path) -> None:
        self.folder = data  # nothing is read here, because a node has only the files of its own clients

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def data(self, client: int) -> ClientData:
        path = self.folder / f"client-{client}.csv"
        try:
            rows = np.loadtxt(path, np.float32, delimiter=",", skiprows=1, ndmin=2)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read ({error})", "set data to its folder, or leave the client out of --clients"
            ) from error
        if rows.shape[1] != 11 or not np.isin(rows[:, 10], (0, 1)).all():
            raise DataError(f"{path} does not hold ten numbers and a diagnosis of 0 or 1 per line", "correct the file")
        x, y, test = rows[:, :10], rows[:, 10].astype(np.int64), np.arange(len(rows)) % 5 == 0
        x = (x - x[~test].mean(axis=0)) / (x[~test].std(axis=0) + 1e-6)  # mean and deviation of this hospital alone
        return ClientData(Split(x[~test], y[~test]), Split(x[test], y[test]))
