"""The built-in tasks name the layer whose output their classifier is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.task import Task
from fedgsp_node.rehearsal import features_of
from fedgsp_node.tasks.cifar10 import Cifar10
from fedgsp_node.tasks.digit_domains import DigitDomains
from fedgsp_node.tasks.digits import Digits
from fedgsp_node.tasks.femnist import Femnist
from fedgsp_node.tasks.grey_images import GreyImages
from fedgsp_node.training.fedfusion import Fusion


def only_the_model(kind: type[Task], **fields: Any) -> Task:
    """A task without data."""
    task = kind.__new__(kind)
    vars(task).update(fields)
    return task


def check(task: Task, images: tuple[int, ...], features: tuple[int, ...]) -> None:
    model, x = task.model().eval(), torch.zeros(2, *images)
    assert features_of(model, task.extractor, x[:1]).shape == features[:1]
    assert Fusion(model, task.extractor).features(x).shape == (2, *features)
    behind = list(model.children())[int(task.extractor) + 1 :]
    assert not any(isinstance(layer, nn.Conv2d) for layer in behind)


def test_digits() -> None:
    check(Digits(), (1, 8, 8), (32, 4, 4))


def test_femnist() -> None:
    check(only_the_model(Femnist, _initialisation="pytorch", _widths=(32, 64, 2048)), (1, 28, 28), (64, 7, 7))


def test_digit_domains() -> None:
    check(DigitDomains(domains="digits", samples=20, width=0.05), (3, 28, 28), (6, 7, 7))


@pytest.mark.parametrize(("model", "features"), [("perceptron", 200), ("hcct", 64)])
def test_grey_images(idx_folder: Path, model: Any, features: int) -> None:
    check(GreyImages(idx_folder, clients=2, partition="iid", model=model), (1, 28, 28), (features,))


@pytest.mark.parametrize(("model", "features"), [("hcct", (128, 4, 4)), ("fedcollab", (64, 4, 4))])
def test_cifar10(tmp_path: Path, model: Any, features: tuple[int, ...]) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "cifar.npz"
    images, labels = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 10
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    check(Cifar10(path, clients=2, partition="iid", model=model), (3, 32, 32), features)
