from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsp.errors import DataError
from fedgsp.task import Task
from fedgsp_node.clients import Clients
from fedgsp_node.tasks import load_task

pytestmark = pytest.mark.usefixtures("examples")

NAMES = ",".join([*(f"value{number}" for number in range(10)), "diagnosis"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a node that hosts client 2 alone."""
    rows = np.column_stack([np.random.default_rng(2).normal(7, 3, (40, 10)), np.arange(40) % 2])
    np.savetxt(tmp_path / "client-2.csv", rows, delimiter=",", header=NAMES, comments="")
    return tmp_path


def load(folder: Path) -> Task:
    return load_task("hospital_csv:Patients", {"data": str(folder)})


def test_a_node_needs_the_file_of_its_own_client_only(folder: Path) -> None:
    hosted = Clients(load(folder), [2]).hosted
    assert [(own.client, own.train_samples, own.test_samples) for own in hosted] == [(2, 32, 8)]
    with pytest.raises(DataError, match=r"client-0\.csv cannot be read"):
        Clients(load(folder), None)


def test_the_model_takes_the_data_which_the_hospital_scales_by_its_own_training_part(folder: Path) -> None:
    task = load(folder)
    train = task.data(2).train
    assert [train.x.dtype, train.y.dtype] == [np.dtype(np.float32), np.dtype(np.int64)]
    assert np.allclose(train.x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(train.x.std(axis=0), 1, atol=1e-4)
    assert task.loss(task.model()(torch.from_numpy(train.x)), torch.from_numpy(train.y)).isfinite()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1,2,3", "cannot be read"),
        (",".join("1234567890x"), "cannot be read"),
        (",".join("12345678902"), "a diagnosis of 0 or 1"),
    ],
)
def test_a_file_of_another_kind_is_refused(folder: Path, line: str, what: str) -> None:
    with (folder / "client-2.csv").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=rf"client-2\.csv .*{what}"):
        load(folder).data(2)


def test_the_task_is_short(examples: Path) -> None:
    tree = ast.parse((examples / "hospital_csv.py").read_text())
    task = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    assert task.end_lineno is not None
    assert task.end_lineno - task.lineno < 25
