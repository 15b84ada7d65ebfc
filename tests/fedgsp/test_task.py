"""What a task does unless it is overridden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import TaskError
from fedgsp.task import Split
from tests.support.blobs_task import Blobs


def histogram(y: np.ndarray) -> list[int]:
    return Blobs().class_counts(Split(np.zeros(len(y)), y)).tolist()  # three classes


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "float16"])
def test_labels_of_any_type_are_counted(dtype: str) -> None:
    assert histogram(np.array([2, 0, 2, 2], dtype)) == [1, 0, 3]


def test_bools_are_two_classes() -> None:
    assert histogram(np.array([True, False, True])) == [1, 2, 0]


@pytest.mark.parametrize(
    "y",
    [
        np.array([0, 1, 3]),
        np.array([-1, 0]),
        np.array([0.5, 1.0]),
        np.array([1e30, 1.0]),
        np.zeros((4, 1), np.int64),
        np.zeros((4, 2, 2), np.int64),
    ],
    ids=["too large", "negative", "fraction", "huge", "column", "per pixel"],
)
def test_what_is_no_class_is_refused_with_the_remedy(y: np.ndarray) -> None:
    with pytest.raises(TaskError, match=r"are not classes 0 \.\. 2; override class_counts\(\)") as caught:
        histogram(y)
    assert f"y of shape {y.shape} and dtype {y.dtype}" in caught.value.what


def test_samples_are_right_by_their_largest_output() -> None:
    outputs = torch.tensor([[3.0, 1, 2], [0, 0, 1], [5, 6, 7]])
    assert Blobs().correct(outputs, torch.tensor([0, 2, 1])) == 2


def test_pixels_are_right_one_by_one_and_those_to_be_ignored_do_not_count() -> None:
    outputs = torch.zeros(2, 3, 2)
    outputs[:, 1] = 1
    assert Blobs().correct(outputs, torch.tensor([[1, 0], [1, -100]])) == (2, 3)


@pytest.mark.parametrize(
    ("outputs", "y"),
    [
        (torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64)),
        (torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.int64)),
        (torch.zeros(4, 3, 1), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 3), torch.zeros(4)),
        (torch.zeros(4, 3), torch.zeros(4, 3)),
        ((torch.zeros(4, 3),), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 3), {"y": torch.zeros(4, dtype=torch.int64)}),
    ],
    ids=["column", "several classes", "columns", "one output", "no column", "floats", "shares", "tuple", "dict"],
)
def test_there_is_no_accuracy_without_an_output_per_class_and_a_class_per_label(outputs: Any, y: Any) -> None:
    assert Blobs().correct(outputs, y) is None
