"""An example of a user's task: heart disease in four hospitals with different equipment and missing values (UCI).

In this directory, name it with `--task heart_disease:Hospitals`. `--task-option data=FOLDER` names the folder of UCI's
files `processed.*.data`, or an `.npz` file with x_train, y_train, hospital_train, x_test, y_test and hospital_test.
A node needs only the data of its own hospitals: with `--clients 1` it reads only `processed.hungarian.data`.
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
#: Columns in which a hospital lacks most values: chol, slope, ca, thal. Their absence is an input of the model too.
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
        # Not in __init__, because a node has only the files of its own clients.
        if client not in self.kept:
            self.kept[client] = scaled(self.read(client))
        return self.kept[client]

    def read(self, client: int) -> ClientData:
        """The patients of one hospital as in the file, not scaled; DataError if they are missing."""
        if self.source.is_dir():
            return from_folder(self.source, client, self.test_share, self.seed)
        return from_npz(self.source, client)

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, float]:
        if len(targets.unique()) < 2:  # the area under the ROC curve needs healthy and ill patients
            return {}
        return {"auc": float(roc_auc_score(targets.numpy(), (outputs[:, 1] - outputs[:, 0]).numpy()))}


def scaled(own: ClientData) -> ClientData:
    """Features with mean 0 and deviation 1, and four features that say which values are missing: (n, 17) in all."""
    train = own.train
    # Mean and deviation are those of this hospital's training part, so nothing about its patients is shared.
    known = np.ma.masked_invalid(without_zero_chol(train.x))
    mean = known.mean(axis=0).filled(0)
    deviation = known.std(axis=0).filled(1)
    deviation[deviation == 0] = 1

    def prepared(part: Split) -> Split:
        x = without_zero_chol(part.x)
        missing = np.isnan(x[:, OFTEN_MISSING])
        # A missing value becomes 0, which is the hospital's mean.
        scaled = np.nan_to_num((x - mean) / deviation)
        return Split(np.hstack([scaled, missing]).astype(np.float32), part.y)

    return ClientData(prepared(train), prepared(own.test))


def without_zero_chol(x: NDArray[Any]) -> NDArray[Any]:
    """`x` with NaN for unmeasured cholesterol, for which two hospitals write 0."""
    x = x.copy()
    x[x[:, CHOL] == 0, CHOL] = np.nan
    return x


def from_folder(folder: Path, client: int, test_share: float, seed: int) -> ClientData:
    """Reads the file of one hospital: per line 13 features and a diagnosis 0 .. 4, with `?` for a missing value."""
    path = folder / f"processed.{HOSPITALS[client]}.data"
    if not path.exists():
        raise DataError(f"client {client} is {HOSPITALS[client]}, but {path} does not exist", elsewhere(client))
    try:
        rows = np.genfromtxt(path, delimiter=",", dtype=np.float32)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})", "give the file that UCI publishes") from error
    if rows.ndim != 2 or rows.shape[1] != 14 or not np.isin(rows[:, 13], range(5)).all():
        raise DataError(f"{path} does not hold 13 features and a diagnosis 0 .. 4 per line", "download it again")
    x, y = rows[:, :13], (rows[:, 13] > 0).astype(np.int64)
    try:
        split = train_test_split(x, y, test_size=test_share, stratify=y, random_state=seed + client)
    except ValueError as error:
        raise DataError(
            f"{path} cannot be split ({error})", "give more patients, or set another test_share"
        ) from error
    return ClientData(Split(split[0], split[2]), Split(split[1], split[3]))


def from_npz(path: Path, client: int) -> ClientData:
    """Reads one hospital's patients from an .npz file with three arrays for each part, train and test.

    x has shape (n, 13), with NaN for missing values; y is 0 or 1, and hospital is 0 .. 3, both of shape (n,).
    """
    halves = []
    for part in ("train", "test"):
        keys = f"x_{part}", f"y_{part}", f"hospital_{part}"
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                x, y, hospital = (held[key] for key in keys)
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise DataError(f"{path} cannot be used ({error})", f"give an .npz file with {', '.join(keys)}") from error
        shapes = x.shape, y.shape, hospital.shape
        if shapes != ((len(x), 13), (len(x),), (len(x),)) or not np.isin(y, (0, 1)).all():
            raise DataError(
                f"{path}: {', '.join(keys)} have shapes {shapes}", "give (n, 13), (n,) with 0 or 1, and (n,)"
            )
        if not np.isin(hospital, range(len(HOSPITALS))).all():
            raise DataError(f"{path}: hospital_{part} has other numbers than those of hospitals", "use 0 .. 3")
        own = hospital == client
        if not own.any():
            who = f"client {client} is {HOSPITALS[client]}"
            raise DataError(f"{who}, but {path} has none of its patients in hospital_{part}", elsewhere(client))
        halves.append(Split(x[own], y[own].astype(np.int64)))
    return ClientData(*halves)


def elsewhere(client: int) -> str:
    """The remedy if the data of a hospital are missing."""
    return f"give the place of its data with --task-option data=, or leave client {client} out of --clients"
