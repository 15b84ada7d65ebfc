"""An error of a client's work is told with what to do, where that is known."""

from __future__ import annotations

import pytest

from fedgsp import ClientData, Split
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
