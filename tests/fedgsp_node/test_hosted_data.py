"""What is kept of the clients' data, and what is asked for again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import TaskError
from fedgsp.task import ClientData, Split, Task
from fedgsp_node import hosted_data
from fedgsp_node.hosted_data import HostedData
from tests.support.blobs_task import Blobs


class Counting(Blobs):
    def __init__(self, repeatable: bool) -> None:
        super().__init__()
        self.data_is_repeatable = repeatable
        self.asked: Counter[int] = Counter()
        self.broken = False

    def data(self, client: int) -> ClientData:
        self.asked[client] += 1
        if self.broken:
            raise OSError("the disk is gone")
        return super().data(client)


def held(task: Counting, turns: list[int]) -> dict[int, int]:
    """How often each client's data was asked for, when they are used in turns."""
    found = HostedData(task, range(4))
    for client in turns:
        assert (found.of(client).train.x == Blobs().data(client).train.x).all()
    return dict(task.asked)


def test_data_are_asked_for_once_if_the_task_promises_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_data, "KEPT_BYTES", 0)
    assert held(Counting(False), [0, 1, 2, 3, 0, 1]) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_repeatable_data_are_kept_as_far_as_they_are_few() -> None:
    assert held(Counting(True), [0, 1, 2, 3, 0, 1]) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_of_repeatable_data_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [hosted_data._nbytes(Blobs().data(client)) for client in range(4)]
    monkeypatch.setattr(hosted_data, "KEPT_BYTES", sizes[2] + sizes[3])
    # 2 and 3 are there from the start; 2 is used again, so that 0 takes the place of 3
    assert held(Counting(True), [3, 2, 0, 2, 3]) == {0: 2, 1: 1, 2: 1, 3: 2}


def test_the_data_used_last_are_kept_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_data, "KEPT_BYTES", 0)
    assert held(Counting(True), [3, 3, 1, 1]) == {0: 1, 1: 2, 2: 1, 3: 1}


def test_sizes_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_data, "KEPT_BYTES", 0)
    sizes = HostedData(Counting(True), range(4)).sizes
    assert [(own.client, own.train_samples) for own in sizes.values()] == [(0, 10), (1, 11), (2, 12), (3, 13)]


def test_data_that_are_gone_when_asked_for_again_are_the_tasks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_data, "KEPT_BYTES", 0)
    task = Counting(True)
    found = HostedData(task, range(4))
    task.broken = True
    with pytest.raises(
        TaskError, match=r"the task's data\(0\) raised OSError: the disk is gone \(test_hosted_data.py:"
    ):
        found.of(0)


class Labelled(Blobs):
    """Client 1's labels are `y`, and of its test part `y_test`; the loss is the default one."""

    loss = Task.loss

    def __init__(self, y: np.ndarray, y_test: np.ndarray | None = None) -> None:
        super().__init__()
        self.y, self.y_test = y, y if y_test is None else y_test

    def data(self, client: int) -> ClientData:
        if client != 1:
            return super().data(client)
        parts = (Split(np.zeros((len(y), 4), np.float32), y) for y in (self.y, self.y_test))
        return ClientData(*parts)


class Measured(Labelled):
    """Its y are no classes."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs[:, 0], targets.float())


ZEROS = np.zeros(3, np.int64)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bool"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_labels_that_cross_entropy_refuses_are_refused_at_the_start(dtype: str, part: str) -> None:
    wrong = ZEROS.astype(dtype)
    task = Labelled(wrong) if part == "train" else Labelled(ZEROS, wrong)
    with pytest.raises(TaskError, match=f"client 1's y has dtype {dtype}, .*cross-entropy.*astype") as caught:
        HostedData(task, range(4))
    assert caught.value.exit_code == 3
    with pytest.raises(RuntimeError):  # so it would in the first batch
        task.loss(torch.zeros(3, 4), torch.from_numpy(wrong)).backward()


def test_a_column_of_labels_is_refused_with_the_remedy() -> None:
    with pytest.raises(TaskError, match=r"client 1's y has shape \(3, 1\); return y.ravel\(\)"):
        HostedData(Labelled(ZEROS[:, None]), range(4))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
def test_labels_of_every_whole_number_type_become_int64(dtype: str) -> None:
    assert HostedData(Labelled(ZEROS.astype(dtype)), [1]).of(1).train.y.dtype == np.int64


def test_shares_of_classes_and_an_empty_test_part_are_taken() -> None:
    assert HostedData(Labelled(np.full((3, 4), 0.25, np.float32), np.empty(0)), [1]).sizes[1].test_samples == 0


@pytest.mark.parametrize("dtype", ["float64", "float32", "bool"])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_a_task_with_a_loss_of_its_own_may_have_any_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    assert HostedData(Measured(np.ones(shape, dtype)), [1]).of(1).train.y.dtype == dtype


def test_a_loss_that_is_given_to_the_task_itself_is_one_of_its_own() -> None:
    task = Labelled(ZEROS.astype(np.float64))
    task.loss = torch.nn.functional.mse_loss  # type: ignore[method-assign,assignment]
    assert HostedData(task, [1]).of(1).train.y.dtype == np.float64


class Given(Blobs):
    """Client 1's x and y are these, in both parts."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.x, self.y = x, y

    def data(self, client: int) -> ClientData:
        return ClientData(Split(self.x, self.y), Split(self.x, self.y))


ROWS = np.arange(18, dtype=np.float32).reshape(3, 6)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i2", "i8"])
def test_arrays_of_either_byte_order_are_taken(order: str, kind: str) -> None:
    found = HostedData(Given(ROWS.astype(f"{order}{kind}"), ZEROS.astype(f"{order}i4")), [1]).of(1).train
    assert torch.equal(torch.from_numpy(found.x).float(), torch.from_numpy(ROWS))
    assert torch.equal(torch.from_numpy(found.y), torch.zeros(3, dtype=torch.int64))


def test_arrays_of_this_machines_byte_order_are_not_copied() -> None:
    assert HostedData(Given(ROWS, ZEROS), [1]).of(1).train.x is ROWS


@pytest.mark.parametrize("name", ["x", "y"])
def test_numbers_longer_than_torch_has_are_refused_with_the_remedy(name: str) -> None:
    given: dict[str, Any] = {"x": ROWS, "y": ZEROS}
    given[name] = given[name].astype(np.longdouble)
    what = rf"the task's data\(1\) returned {name} of dtype longdouble; return {name}\.astype\(np\.float32\)"
    with pytest.raises(TaskError, match=what):
        HostedData(Given(**given), [1])


@pytest.mark.parametrize("name", ["x", "y"])
def test_masked_values_are_refused_with_the_remedy(name: str) -> None:
    given = {"x": ROWS, "y": np.array([0, 1, 2])}
    given[name] = np.ma.masked_greater(given[name], 1)
    what = rf"the task's data\(1\) returned {name} with masked values; replace the masked values: {name}\.filled"
    with pytest.raises(TaskError, match=what):
        HostedData(Given(**given), [1])


def test_a_masked_array_without_masked_values_is_taken() -> None:
    assert (HostedData(Given(np.ma.masked_less(ROWS, 0), ZEROS), [1]).of(1).train.x == ROWS).all()


class Validated(Labelled):
    def __init__(self, validation: Any) -> None:
        super().__init__(ZEROS)
        self.validation = validation

    def data(self, client: int) -> ClientData:
        data = super().data(client)
        return ClientData(data.train, data.test, self.validation)


def test_a_validation_part_is_checked_and_counted_as_the_other_parts() -> None:
    data = HostedData(Validated(Split(np.zeros((2, 3)), np.zeros(2, np.int32))), [1])
    assert data.sizes[1].validation_samples == 2
    assert data.part(1, "validation").y.dtype == np.int64
    assert HostedData(Labelled(ZEROS), [1]).sizes[1].validation_samples == 0
    with pytest.raises(TaskError, match="client 1's validation is a list"):
        HostedData(Validated([1, 2]), [1])
    with pytest.raises(TaskError, match="client 1 has no validation part"):
        HostedData(Labelled(ZEROS), [1]).part(1, "validation")
