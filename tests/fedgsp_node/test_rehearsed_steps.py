"""Tasks that would fail in the first step, or in the first evaluation, are refused when the node starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedgsp.errors import TaskError
from fedgsp.task import Task
from fedgsp_node.clients import Clients
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.first = nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, self.first(x), use_reentrant=True)


class InPlace(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sigmoid().mul_(2)


def refused(task: Blobs, what: str) -> str:
    with pytest.raises(TaskError, match=what) as caught:
        Clients(task, None).rehearse()
    return caught.value.remedy


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("make", "what"),
    [(Reentrant, "When use_reentrant=True"), (lambda: InPlace(6, 3), "modified by an inplace operation")],
)
def test_a_model_whose_backward_pass_fails_is_refused(make: Callable[[], nn.Module], what: str) -> None:
    class Failing(Blobs):
        def model(self) -> nn.Module:
            return make()

    refused(Failing(), rf"backward pass of loss\(\) raised RuntimeError: .*{what}")


def test_a_loss_that_cannot_be_computed_without_gradients_is_refused() -> None:
    class Penalised(Blobs):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = super().loss(outputs, targets)
            (slope,) = torch.autograd.grad(loss, outputs, create_graph=True)
            return loss + slope.square().sum()

    refused(Penalised(), r"loss\(\) without gradients on samples of a training part raised RuntimeError")


def test_an_optimiser_that_the_task_keeps_is_refused() -> None:
    class Keeping(Blobs):
        kept: torch.optim.Optimizer | None = None

        def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
            self.kept = self.kept or torch.optim.Adam(parameters, lr=learning_rate)
            return self.kept

    assert "make it anew in each call" in refused(Keeping(), r"optimizer\(\) returned the same optimiser twice")


def test_a_model_with_fewer_outputs_than_classes_is_refused_though_the_first_samples_have_one() -> None:
    class Few(Blobs):
        num_classes, loss = 4, Task.loss

        def model(self) -> nn.Module:
            return nn.Linear(6, 3)

    assert "correct num_classes" in refused(Few(), "returns 3 numbers for each sample, and num_classes is 4")


@dataclass
class Found:
    logits: torch.Tensor


class Returning(Blobs):
    """Its model returns something of the features and of the logits."""

    def __init__(self, returns: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.returns = returns

    def model(self) -> nn.Module:
        returns = self.returns

        class Net(nn.Linear):
            def forward(self, x: torch.Tensor) -> Any:
                return returns(super().forward(x))

        return Net(6, 3)

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs.logits if isinstance(outputs, Found) else outputs["logits"], targets)

    def metrics(self, outputs: Any, targets: torch.Tensor) -> dict[str, float]:
        return {"seen": float(len(targets))}


@pytest.mark.parametrize(
    ("returns", "what", "remedy"),
    [
        (lambda logits: {"logits": logits, "penalty": logits.mean()}, r"tensors of the shapes \(\)", "expand"),
        (Found, "returned Found, which cannot be joined", "tuples, lists or dicts"),
    ],
)
def test_outputs_that_metrics_could_not_get_in_any_round_are_refused(returns: Any, what: str, remedy: str) -> None:
    assert remedy in refused(Returning(returns), what)


def test_outputs_may_have_nothing_in_a_place() -> None:
    clients = Clients(Returning(lambda logits: {"logits": logits, "hidden": None}), None)
    clients.rehearse()
    assert clients.evaluate(1, clients.initial_weights(0), Control()).metrics == {"seen": 5.0}
