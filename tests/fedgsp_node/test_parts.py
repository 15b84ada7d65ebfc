"""What is kept of the clients' data, and what is asked for again."""

from __future__ import annotations

from collections import Counter

import pytest
from support.blobs_task import Blobs

from fedgsp.errors import TaskError
from fedgsp.task import ClientData
from fedgsp_node import parts
from fedgsp_node.parts import Parts


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
    found = Parts(task, range(4))
    for client in turns:
        assert (found.of(client).train.x == Blobs().data(client).train.x).all()
    return dict(task.asked)


def test_data_are_asked_for_once_if_the_task_promises_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "KEPT_BYTES", 0)
    assert held(Counting(False), [0, 1, 2, 3, 0, 1]) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_repeatable_data_are_kept_as_far_as_they_are_few() -> None:
    assert held(Counting(True), [0, 1, 2, 3, 0, 1]) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_of_repeatable_data_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [parts._nbytes(Blobs().data(client)) for client in range(4)]
    monkeypatch.setattr(parts, "KEPT_BYTES", sizes[2] + sizes[3])
    # 2 and 3 are there from the start; 2 is used again, so that 0 takes the place of 3
    assert held(Counting(True), [3, 2, 0, 2, 3]) == {0: 2, 1: 1, 2: 1, 3: 2}


def test_the_data_used_last_are_kept_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "KEPT_BYTES", 0)
    assert held(Counting(True), [3, 3, 1, 1]) == {0: 1, 1: 2, 2: 1, 3: 1}


def test_sizes_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "KEPT_BYTES", 0)
    sizes = Parts(Counting(True), range(4)).sizes
    assert [(own.client, own.train_samples) for own in sizes.values()] == [(0, 10), (1, 11), (2, 12), (3, 13)]


def test_data_that_are_gone_when_asked_for_again_are_the_tasks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "KEPT_BYTES", 0)
    task = Counting(True)
    found = Parts(task, range(4))
    task.broken = True
    with pytest.raises(TaskError, match=r"the task's data\(0\) raised OSError: the disk is gone \(test_parts.py:"):
        found.of(0)
