from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from fedgsp.task import Task
from fedgsp_node.tasks import load_task


@pytest.fixture
def clinics(examples: Path) -> Task:
    return load_task("breast_cancer:Clinics", {"clinics": "6"})


def test_the_example_gives_six_clinics_all_patients_once(clinics: Task) -> None:
    held = [clinics.data(client) for client in range(clinics.num_clients)]
    assert len(held) == 6
    assert sum(len(own.train) + len(own.test) for own in held) == 569


def test_the_example_is_not_iid(clinics: Task) -> None:
    first, last = (clinics.class_counts(clinics.data(client).train) for client in (0, 5))
    assert first[1] > 10 * first[0]
    assert last[0] > 10 * last[1]


def test_the_model_of_the_example_takes_its_data(clinics: Task) -> None:
    train = clinics.data(2).train
    outputs = clinics.model()(torch.from_numpy(train.x))
    assert outputs.shape == (len(train), 2)
    assert clinics.loss(outputs, torch.from_numpy(train.y)).isfinite()


def test_the_task_of_the_example_takes_thirty_lines_at_most(examples: Path) -> None:
    tree = ast.parse((examples / "breast_cancer.py").read_text())
    task = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    assert task.end_lineno is not None
    assert task.end_lineno - task.lineno < 30
