"""A task of one's own: heart disease in four hospitals, each with its own equipment and its own gaps (UCI).

In this directory: name it `--task heart_disease:Hospitals`, and the data by `--task-option data=FOLDER` of the files
`processed.*.data` as UCI publishes them, or by an `.npz` of x_train, y_train, hospital_train, x_test, ... A node needs
the data of the hospitals that it hosts: `--clients 1` reads `processed.hungarian.data` and no other file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from fedgsp import ClientData, Split, Task
from fedgsp.errors import DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CHOL = 4
#: Columns of which some hospital lacks most values: chol, slope, ca, thal. That a value is missing says something too.
OFTEN_MISSING = [CHOL, 10, 11, 12]


class Hospitals(Task):
    num_classes = 2
    num_clients = len(HOSPITALS)

    def __init__(self, data: Path, hidden: int = 16, test_share: float = 0.2, seed: int = 0) -> None:
        self.source, self.hidden, self.test_share, self.seed = data, hidden, test_share, seed
        self.kept: dict[int, ClientData] = {}

    def model(self) -> torch.nn.Module:
        inputs = 13 + len(OFTEN_MISSING)
        if self.hidden == 0:  # logistic regression
            return torch.nn.Linear(inputs, 2)
        return torch.nn.Sequential(
            torch.nn.Linear(inputs, self.hidden), torch.nn.ReLU(), torch.nn.Linear(self.hidden, 2)
        )

    def data(self, client: int) -> ClientData:
        # Not in __init__: a node has the files of its own clients, not those of the others.
        if client not in self.kept:
            self.kept[client] = scaled(self.read(client))
        return self.kept[client]

    def read(self, client: int) -> ClientData:
        """One hospital's patients as the file has them; DataError if they are not there."""
        if self.source.is_dir():
            return from_folder(self.source, client, self.test_share, self.seed)
        return from_npz(self.source, client)

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, float]:
        if len(targets.unique()) < 2:  # no area under a curve without both healthy and ill patients
            return {}
        return {"auc": float(roc_auc_score(targets.numpy(), (outputs[:, 1] - outputs[:, 0]).numpy()))}


def scaled(own: ClientData) -> ClientData:
    """Features of mean 0 and deviation 1, and four that say what is missing."""
    train = own.train
    # Scales of this hospital's own training part: nothing about its patients is shared.
    known = np.ma.masked_invalid(without_zero_chol(train.x))
    mean = known.mean(axis=0).filled(0)
    deviation = known.std(axis=0).filled(1)
    deviation[deviation == 0] = 1

    def prepared(part: Split) -> Split:
        x = without_zero_chol(part.x)
        missing = np.isnan(x[:, OFTEN_MISSING])
        # A missing value becomes 0, the hospital's mean.
        scaled = np.nan_to_num((x - mean) / deviation)
        return Split(np.hstack([scaled, missing]).astype(np.float32), part.y)

    return ClientData(prepared(train), prepared(own.test))


def without_zero_chol(x: NDArray[Any]) -> NDArray[Any]:
    """Two hospitals write 0 where cholesterol was not measured."""
    x = x.copy()
    x[x[:, CHOL] == 0, CHOL] = np.nan
    return x


def from_folder(folder: Path, client: int, test_share: float, seed: int) -> ClientData:
    """A hospital's own file: 13 features and the diagnosis 0..4 per line, `?` where a value is missing."""
    path = folder / f"processed.{HOSPITALS[client]}.data"
    if not path.exists():
        raise DataError(f"client {client} is {HOSPITALS[client]}, and {path} is not there", elsewhere(client))
    try:
        rows = np.genfromtxt(path, delimiter=",", dtype=np.float32)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})", "give it as UCI publishes it") from error
    if rows.ndim != 2 or rows.shape[1] != 14 or not np.isin(rows[:, 13], range(5)).all():
        raise DataError(f"{path} does not hold 13 features and a diagnosis of 0..4 per line", "get it again")
    x, y = rows[:, :13], (rows[:, 13] > 0).astype(np.int64)
    try:
        split = train_test_split(x, y, test_size=test_share, stratify=y, random_state=seed + client)
    except ValueError as error:
        raise DataError(f"{path} cannot be split ({error})", "give more patients, or another test_share") from error
    return ClientData(Split(split[0], split[2]), Split(split[1], split[3]))


def from_npz(path: Path, client: int) -> ClientData:
    """x_* of shape (n, 13) with NaN where a value is missing, y_* of 0 or 1, hospital_* of 0..3; * train and test."""
    halves = []
    for part in ("train", "test"):
        keys = f"x_{part}", f"y_{part}", f"hospital_{part}"
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                x, y, hospital = (held[key] for key in keys)
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise DataError(f"{path} cannot be used ({error})", f"give an .npz of {', '.join(keys)}") from error
        shapes = x.shape, y.shape, hospital.shape
        if shapes != ((len(x), 13), (len(x),), (len(x),)) or not np.isin(y, (0, 1)).all():
            raise DataError(f"{path}: {', '.join(keys)} are of shapes {shapes}", "give n x 13, n of 0 or 1, and n")
        if not np.isin(hospital, range(len(HOSPITALS))).all():
            raise DataError(f"{path}: hospital_{part} does not number the four hospitals", "number them 0..3")
        own = hospital == client
        if not own.any():
            who = f"client {client} is {HOSPITALS[client]}"
            raise DataError(f"{who}, and {path} has none of its patients in hospital_{part}", elsewhere(client))
        halves.append(Split(x[own], y[own].astype(np.int64)))
    return ClientData(*halves)


def elsewhere(client: int) -> str:
    """What to do where a hospital's data are not."""
    return f"name where they are with --task-option data=, or leave client {client} out of --clients"
