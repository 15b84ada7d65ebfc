"""An error of a client's work is told with what to do, where that is known."""

from __future__ import annotations

import asyncio

import pytest

from fedgsp import ClientData, Split
from fedgsp.errors import TaskError
from fedgsp.messages import FailureCode, TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.devices import CPU
from fedgsp_node.failed_work import why_failed
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs


class OneSample(Blobs):
    """Its model has batch norm, and client 0 has one training sample."""

    def data(self, client: int) -> ClientData:
        found = super().data(client)
        kept = 1 if client == 0 else None
        return ClientData(Split(found.train.x[:kept], found.train.y[:kept]), found.test)


def test_batch_norm_of_a_client_with_one_sample_is_told_with_what_to_do() -> None:
    clients, settings = Clients(OneSample(), None), TrainingSettings("sgd", 1, 7, 0.05, seed=11)
    with pytest.raises(OrderError, match="Expected more than 1 value per channel") as caught:
        clients.train(0, clients.initial_weights(0), settings, 1, Control())
    failure = caught.value.failure
    assert failure.code is FailureCode.TASK_RAISED
    assert "use nn.GroupNorm" in failure.detail
    assert "clients with one training sample (--clients)" in failure.detail


def test_another_error_is_told_as_it_is() -> None:
    assert why_failed(ValueError("odd"), CPU) == "ValueError: odd"


class Unusual(BaseException):
    """Of a package; no Exception."""


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unusual("over"), r"Unusual: over \(test_failed"),
        (MuteError(), r"MuteError: its text could not be made \(RuntimeError\)"),
    ],
)
def test_any_error_of_a_task_fails_its_order_or_its_start_and_nothing_else(error: BaseException, told: str) -> None:
    def fail() -> None:
        raise error

    clients, settings = Clients(task := Blobs(), None), TrainingSettings("sgd", 1, 7, 0.05, seed=11)
    start = clients.initial_weights(0)
    task.on_loss = fail
    with pytest.raises(OrderError, match=told):
        clients.train(1, start, settings, 1, Control())
    with pytest.raises(TaskError, match=told):
        clients.rehearse()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_ends_a_node_is_no_error_of_its_task(error: BaseException) -> None:
    def fail() -> None:
        raise error

    clients, settings = Clients(task := Blobs(), None), TrainingSettings("sgd", 1, 7, 0.05, seed=11)
    start = clients.initial_weights(0)
    task.on_loss = fail
    with pytest.raises(type(error)):
        clients.train(1, start, settings, 1, Control())
