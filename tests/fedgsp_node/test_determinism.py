"""Deterministic algorithms: work that torch refuses begins again with any algorithms, and that is told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from fedgsp.errors import TaskError
from fedgsp_node import determinism
from fedgsp_node.determinism import where_possible

pytestmark = pytest.mark.filterwarnings("ignore:put_ does not have a deterministic:UserWarning")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(determinism, "_asked", False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(False)


def put() -> float:
    """An operation that torch has no deterministic algorithm for, also on the CPU."""
    return float(torch.zeros(3).put_(torch.tensor([1]), torch.tensor([2.0])).sum())


class Worker:
    """Counts how often its work was begun."""

    begun = 0

    @where_possible
    def work(self, wrapped: bool = False) -> float:
        self.begun += 1
        try:
            return put()
        except RuntimeError as error:
            if wrapped:
                raise TaskError(f"the task's loss() raised {error}", "fix the task module") from error
            raise


@pytest.mark.parametrize("wrapped", [False, True])
def test_work_that_was_refused_begins_again_and_is_told_once(wrapped: bool, caplog: pytest.LogCaptureFixture) -> None:
    determinism.ask()
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        put()
    worker = Worker()
    with caplog.at_level(logging.WARNING):
        assert [worker.work(wrapped), worker.work(wrapped)] == [2.0, 2.0]
    assert worker.begun == 3
    (told,) = [record.getMessage() for record in caplog.records]
    assert "cannot compute deterministically on a GPU" in told
    assert "put_ does not have a deterministic implementation" in told


def test_a_task_that_wants_refusals_itself_has_them() -> None:
    torch.use_deterministic_algorithms(True)
    worker = Worker()
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        worker.work()
    assert worker.begun == 1
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_other_errors_are_raised_as_they_are() -> None:
    determinism.ask()

    @where_possible
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
