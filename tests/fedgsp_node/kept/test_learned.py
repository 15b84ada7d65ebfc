"""What is said of a training that diverged."""

from __future__ import annotations

import pytest
import torch

from fedgsp.messages import FailureCode, TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs

SETTINGS = TrainingSettings("sgd", 2, 7, 0.05, seed=11)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (1, r"\(the loss of its first batch is inf\): look for such values in its samples"),
        (2, r"\(.* holds NaN .*; batch 2 has the loss inf, and the one before \d.*\): lower --learning-rate, or look"),
    ],
)
def test_a_loss_that_is_no_number_is_told_with_its_batch(batch: int, told: str) -> None:
    class Survival(Blobs):
        """The loss of one batch is divided by no events."""

        calls = 0

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().loss(outputs, targets) / (self.calls != batch)

    clients = Clients(Survival(), None)
    with pytest.raises(OrderError, match=f"client 2's training diverged {told}") as caught:
        clients.train(2, clients.initial_weights(0), SETTINGS, 1, Control())
    assert caught.value.failure.code is FailureCode.DIVERGED
