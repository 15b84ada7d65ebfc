"""Deterministic algorithms: work that torch refuses begins again with any algorithms, and that is told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedgsp.errors import TaskError
from fedgsp.scoring import CLASS_COUNTS
from fedgsp.task import Part
from fedgsp_node import determinism
from fedgsp_node.clients import Clients
from fedgsp_node.determinism import where_possible
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs

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

    def __init__(self, device: str = "meta") -> None:
        self.device = torch.device(device)

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
    assert "cannot compute an operation of this model deterministically" in told
    assert told.endswith("put_ does not have a deterministic implementation")


def test_work_on_the_cpu_which_may_have_changed_a_model_does_not_begin_again() -> None:
    determinism.ask()
    worker = Worker("cpu")
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        worker.work()
    assert worker.begun == 1


class Scored(Blobs):
    """Its metrics, or its class counts, need an operation without a deterministic algorithm."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        return {"put": put()} if self._what == "metrics" else {}

    def class_counts(self, part: Part) -> Any:
        if self._what == "class counts":
            put()
        return super().class_counts(part)


def test_a_refusal_in_metrics_is_not_hidden_as_a_failure_of_the_task() -> None:
    determinism.ask()
    clients = Clients(Scored("metrics"), None)
    with pytest.raises(OrderError, match="put_ does not have a deterministic implementation"):
        clients.evaluate(0, clients.initial_weights(0), Control())
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert clients.evaluate(0, clients.initial_weights(0), Control()).metrics == {"put": 2.0}


def test_a_refusal_in_class_counts_is_not_hidden_as_a_task_without_them() -> None:
    determinism.ask()
    clients = Clients(Scored("class counts"), None)
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        clients.rehearse()
    torch.use_deterministic_algorithms(True, warn_only=True)
    clients.rehearse()
    assert CLASS_COUNTS not in clients.declared.lacks


def test_a_task_that_wants_refusals_itself_has_them() -> None:
    torch.use_deterministic_algorithms(True)
    worker = Worker()
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        worker.work()
    assert worker.begun == 1
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_other_errors_are_raised_as_they_are() -> None:
    determinism.ask()

    class Failing(Worker):
        @where_possible
        def fail(self) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Failing().fail()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
