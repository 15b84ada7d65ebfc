"""A node tries the model as a training uses it: what differs in training mode works, or is refused at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import TrainingSettings
from fedgsp.scoring import ONE_OUTPUT
from fedgsp.task import ClientData, Split
from fedgsp_node.clients import Clients
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs

SETTINGS = TrainingSettings("sgd", 1, 7, 0.05, seed=11)


class Detector(nn.Module):
    """Like those of torchvision: it returns its losses in training mode, and what it found otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        found = self.last(batch["x"])
        if self.training:
            return {"class": nn.functional.cross_entropy(found, batch["y"]), "size": found.square().mean()}
        return found.argmax(dim=1)


class Detecting(Blobs):
    def model(self) -> nn.Module:
        return Detector()

    def data(self, client: int) -> ClientData:
        given = super().data(client)
        parts = (given.train, given.test)
        return ClientData(*(Split({"x": part.x, "y": part.y}, part.y) for part in parts))

    def loss(self, outputs: Any, targets: torch.Tensor) -> Any:
        return sum(outputs.values()) if isinstance(outputs, dict) else 0.0

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int:
        return int((outputs == targets).sum())


class WithoutGradients(nn.Linear):
    """Its evaluation needs no gradients, and it says so itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.training):
            return super().forward(x)


class Auxiliary(nn.Linear):
    """It has a second output, only in training mode, as networks with deep supervision do."""

    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        return (found, found / 2) if self.training else found


class Deeply(Blobs):
    def model(self) -> nn.Module:
        return Auxiliary(6, 3)

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        if isinstance(outputs, torch.Tensor):
            return super().loss(outputs, targets)
        return super().loss(outputs[0], targets) + super().loss(outputs[1], targets)


def with_model(make: Callable[[], nn.Module]) -> Blobs:
    task = Blobs()
    task.model = make  # type: ignore[method-assign]
    return task


@pytest.mark.parametrize("task", [Detecting(), with_model(lambda: WithoutGradients(6, 3)), Deeply()])
def test_a_model_that_computes_something_else_in_training_mode_is_tried_there_and_trains(task: Blobs) -> None:
    clients = Clients(task, None)
    clients.rehearse()
    start = clients.initial_weights(3)
    trained = clients.train(1, start, SETTINGS, 1, Control()).after
    assert all((trained.arrays[name] != start.arrays[name]).any() for name in start.arrays)
    assert clients.evaluate(1, trained, Control()).judged == 5
    assert (ONE_OUTPUT in clients.declared.lacks) == (not isinstance(task.model(), WithoutGradients))


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = self.noisy(x)  # type: ignore[operator]
        return super().forward(x)


class Deepening(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.append(nn.Linear(3, 3))
        found: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return found


class Teacher(nn.Module):
    """A copy that does not train follows the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.second.weight.lerp_(self.first.weight, 0.1)
        found: torch.Tensor = self.first(x)
        return found


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Broken(6, 3), r"model\(\) on samples of a training part raised AttributeError: .*noisy"),
        (lambda: Auxiliary(6, 3), r"loss\(\) on samples of a training part raised TypeError"),
        (lambda: Deepening(nn.Linear(6, 3)), r"made a new parameter '1\.bias'; make all of its layers in model"),
        (Teacher, r"changed its tensor 'second\.weight', which does not travel"),
    ],
)
def test_what_fails_only_in_training_mode_is_refused(make: Callable[[], nn.Module], what: str) -> None:
    with pytest.raises(TaskError, match=what):
        Clients(with_model(make), None).rehearse()


def test_a_client_with_one_sample_does_not_stop_a_node_with_batch_norm() -> None:
    class Few(Blobs):
        def data(self, client: int) -> ClientData:
            given = super().data(client)
            return given if client else ClientData(Split(given.train.x[:1], given.train.y[:1]), given.test)

    clients = Clients(Few(), None)
    clients.rehearse()
    clients.rehearse(1)


def test_a_trial_leaves_nothing_to_the_clients() -> None:
    tried, untried = Clients(Blobs(), None), Clients(Blobs(), None)
    tried.rehearse()
    start = untried.initial_weights(3)
    trained = [clients.train(1, start, SETTINGS, 1, Control()).after for clients in (tried, untried)]
    assert np.array_equal(trained[0].buffer, trained[1].buffer)


class Listed(nn.Module):
    """Its first layers are in a list, where torch does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = [nn.Linear(6, 6)], nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layers[0](x))
        return found


class Centres(nn.Module):
    """A loss that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3, 3))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets) + (outputs - self.centres[targets]).square().mean()


def listed(trained: bool = True) -> nn.Module:
    model = Listed()
    model.layers[0].requires_grad_(trained)
    return nn.Sequential(model)


def test_layers_that_would_never_train_are_refused() -> None:
    with pytest.raises(TaskError, match=r"attribute '0\.layers' holds layers or parameters where torch") as caught:
        Clients(with_model(listed), None).rehearse()
    assert "nn.ModuleList" in caught.value.remedy
    Clients(with_model(lambda: listed(trained=False)), None).rehearse()


@pytest.mark.parametrize("trained", [True, False])
def test_a_loss_that_would_never_learn_is_told(trained: bool, caplog: pytest.LogCaptureFixture) -> None:
    task = Blobs()
    task.loss = Centres().requires_grad_(trained)  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        Clients(task, None).rehearse()
    told = "the loss depends on 1 parameters that are none of the model's, such as one of shape (3, 3)"
    assert [told in record.getMessage() for record in caplog.records] == [True] * trained


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(6, 3), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))]
)
def test_nothing_is_told_of_the_models_own_parameters(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    Clients(with_model(make), None).rehearse()
    assert not caplog.records
