"""Models that change themselves, or their inputs, as they compute, are trained as by a plain loop of torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.messages import Additions, Failure, FailureCode, TrainingSettings
from fedgsp.seeds import stream
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.kept.personal_state import PERSONAL_MODEL
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs
from tests.support.trainings import ALGORITHMS

BATCH, RATE = 7, 0.05
SETTINGS = TrainingSettings("sgd", 2, BATCH, RATE, seed=11)


class Norm(nn.Module):
    """Its first layer's weights are kept short by taking their place, as in EEGNet."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.weight.data = torch.renorm(self.first.weight.data, 2, 0, 0.3)
        return self.last(self.first(x).relu())


class Running(nn.Module):
    """Its running mean is another tensor after every batch."""

    mean: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.last = nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(x - self.mean)


class Clamped(nn.Module):
    """Its weights are cut off in place whenever it computes, and its calls counted."""

    calls: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.last = nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            self.last.weight.clamp_(-0.05, 0.05)
        return self.last(x)


class InPlace(nn.Module):
    """Its inputs are normalised in place."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 1
        x /= 2
        return self.last(x)


class Hidden(nn.Module):
    """A random part that is not in its state."""

    mix: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mix", torch.randn(inputs, 8), persistent=False)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x @ self.mix)


class Growing(nn.Module):
    """A buffer that does not keep its shape."""

    seen: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.last = nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, torch.zeros(1)])
        return self.last(x)


class Unsaved(nn.Module):
    """Its running mean is no part of its state."""

    mean: torch.Tensor

    def __init__(self, inputs: int, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs), persistent=False)
        self.last, self.in_place = nn.Linear(inputs, 3), in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.mean.add_(x.mean(0))
        else:
            self.mean = self.mean + x.mean(0)
        return self.last(x - self.mean)


class Late(nn.Module):
    """Its running mean has no value before the first batch of a training."""

    mean: torch.Tensor | None

    def __init__(self, inputs: int, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("mean", None, persistent=persistent)
        self.last = nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = x.mean(0) if self.mean is None else 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(x if self.mean is None else x - self.mean)


class Positions(nn.Module):
    """It keeps a table that it computes when it is first called, as rotary embeddings do."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.last = nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, x.shape[1])
        return self.last(x * self.table)


class Slope(nn.Module):
    """It needs a gradient by its input, also in an evaluation, as models of energies and forces do."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 4), nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.first(x).tanh().sum(), x, create_graph=True)
        return self.last(slope)


UNUSUAL = (Norm, Running, Clamped, InPlace, Positions, Slope)


def task_of(kind: Callable[[int], nn.Module]) -> Blobs:
    task = Blobs()
    task.extractor = "last"
    inputs = task.data(0).train.x.shape[1]
    task.model = lambda: kind(inputs)  # type: ignore[method-assign]
    return task


def plainly(task: Blobs, start: Weights, client: int, epochs: int, algorithm: str = "sgd") -> dict[str, torch.Tensor]:
    """A loop of torch with its own optimiser."""
    module = task.model()
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.arrays.items()})
    module.train()
    data = task.data(client).train
    x, y = torch.from_numpy(data.x.copy()), torch.from_numpy(data.y.copy())
    order = stream(SETTINGS.seed, "batch-order", 1, client)
    optimiser = torch.optim.SGD(module.parameters(), RATE)
    for _ in range(epochs):
        for rows in torch.split(torch.from_numpy(order.permutation(len(x))), BATCH):
            optimiser.zero_grad()
            task.loss(module(x[rows]), y[rows]).backward()
            optimiser.step()
    return module.state_dict()


@pytest.mark.parametrize("kind", UNUSUAL)
def test_they_are_trained_as_by_a_plain_loop(kind: Callable[[int], nn.Module]) -> None:
    task = task_of(kind)
    clients = Clients(task, None)
    start = clients.initial_weights(3)
    trained = clients.train(2, start, SETTINGS, 1, Control()).after
    for name, expected in plainly(task, start, 2, 2).items():
        np.testing.assert_allclose(
            np.asarray(trained.arrays[name], np.float64), expected.numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )
    assert (trained.arrays["last.weight"] != start.arrays["last.weight"]).any()


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_trains_and_keeps_what_they_become(kind: Callable[[int], nn.Module], algorithm: str) -> None:
    clients = Clients(task_of(kind), None)
    clients.extend(Additions(algorithm))
    start = clients.initial_weights(3)
    before = {name: array.copy() for name, array in start.arrays.items()}
    settings = TrainingSettings(algorithm, 2, BATCH, RATE, seed=11)
    learned = clients.train(2, start, settings, 1, Control())
    for name, array in start.arrays.items():
        np.testing.assert_array_equal(array, before[name])
    # These two let the shared model follow gradients, or models, that are taken elsewhere.
    shared = {} if algorithm in ("pfedme", "per-fedavg") else learned.after.arrays
    for arrays in (shared, learned.keeps.get(PERSONAL_MODEL, {})):
        if arrays and kind is Norm:
            # Kept short at the start of every pass, so at most one step longer.
            assert np.linalg.norm(arrays["first.weight"], axis=1).max() < 0.5
    assert (learned.after.arrays["last.weight"] != before["last.weight"]).any()


@pytest.mark.parametrize("kind", [*UNUSUAL, Hidden])
def test_an_evaluation_changes_neither_model_nor_data(kind: Callable[[int], nn.Module]) -> None:
    clients = Clients(task_of(kind), None)
    model = clients.initial_weights(3)
    digest = Weights.of({name: array.copy() for name, array in model.arrays.items()}, model.tensors).digest
    data = clients.task.data(1).test
    first, second = (clients.evaluate(1, model, Control()) for _ in range(2))
    assert (first.correct, first.loss_sum) == (second.correct, second.loss_sum)
    assert Weights.of(model.arrays, model.tensors).digest == digest
    module = clients.task.model().eval()
    if kind is not Hidden:
        module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in model.arrays.items()})
        x, y = torch.from_numpy(data.x.copy()), torch.from_numpy(data.y)
        with torch.no_grad():
            assert first.correct == clients.task.correct(module(x), y)


def test_what_is_random_and_not_in_the_state_is_alike_on_all_nodes() -> None:
    evaluated = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # whatever the process did before
        clients = Clients(task_of(Hidden), None)
        evaluated.append(clients.evaluate(1, clients.initial_weights(3), Control()))
    assert evaluated[0] == evaluated[1]


@pytest.mark.parametrize(
    "kind",
    [lambda inputs: Unsaved(inputs, True), lambda inputs: Unsaved(inputs, False), lambda inputs: Late(inputs, False)],
    ids=["in place", "anew", "without a first value"],
)
def test_what_is_not_in_the_state_does_not_pass_from_client_to_client(kind: Callable[[int], nn.Module]) -> None:
    task = task_of(kind)
    busy, fresh = Clients(task, None), Clients(task, None)
    start = busy.initial_weights(3)
    busy.train(1, start, SETTINGS, 1, Control())
    busy.evaluate(3, start, Control())
    trained = [clients.train(2, start, SETTINGS, 1, Control()).after for clients in (busy, fresh)]
    assert np.array_equal(trained[0].buffer, trained[1].buffer)
    for name, expected in plainly(task, start, 2, 2).items():
        np.testing.assert_allclose(
            np.asarray(trained[0].arrays[name], np.float64), expected.numpy(), rtol=1e-5, atol=1e-6
        )


class Counting(nn.Module):
    """It counts its calls, and goes on from its last hidden state, both in plain attributes."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.last, self.calls = nn.Linear(inputs, 3), 0
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        before = 0.0 if self.hidden is None else self.hidden
        self.hidden = x.mean(0) / self.calls
        outputs: torch.Tensor = self.last(x + before)
        return outputs


def test_plain_attributes_do_not_pass_from_client_to_client(caplog: pytest.LogCaptureFixture) -> None:
    task = task_of(Counting)
    busy, fresh = Clients(task, None), Clients(task, None)
    start = busy.initial_weights(3)
    busy.rehearse()
    busy.train(1, start, SETTINGS, 1, Control())
    busy.evaluate(3, start, Control())
    trained = [clients.train(2, start, SETTINGS, 1, Control()).after for clients in (busy, fresh)]
    assert np.array_equal(trained[0].buffer, trained[1].buffer)
    evaluated = [clients.evaluate(0, start, Control()) for clients in (busy, fresh)]
    assert evaluated[0] == evaluated[1]
    told = [record.getMessage() for record in caplog.records if record.name == "fedgsp_node.model.first_values"]
    assert len(told) == 2  # by each of the two, once
    assert "changed the attribute 'calls' of its layer '' from 0 to " in told[0]


class Force(nn.Module):
    """It returns the slope of an energy, for which it goes back itself, which leaves gradients in its parameters."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.energy, self.last = nn.Linear(inputs, 8), nn.Linear(inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            at = x.detach().clone().requires_grad_()
            self.energy(at).tanh().sum().backward()
        outputs: torch.Tensor = self.last(at.grad)
        return outputs


def test_gradients_that_an_evaluation_leaves_do_not_reach_a_training() -> None:
    busy, fresh = (Clients(task_of(Force), None) for _ in range(2))
    start = busy.initial_weights(3)
    busy.evaluate(1, start, Control())
    trained = [clients.train(2, start, SETTINGS, 1, Control()).after for clients in (busy, fresh)]
    assert np.array_equal(trained[0].buffer, trained[1].buffer)


class Deepening(nn.Module):
    """It grows by a layer in training."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(self.layers) < 3:
            self.layers.append(nn.Linear(x.shape[1], 3))
        return torch.stack([layer(x) for layer in self.layers]).mean(0)


def test_layers_that_a_training_adds_are_told_to_each_client() -> None:
    clients = Clients(task_of(Deepening), None)
    start = clients.initial_weights(3)
    with pytest.raises(OrderError, match=r"made a new parameter 'layers\.1\.bias'; make all of its layers in model"):
        clients.train(0, start, SETTINGS, 1, Control())
    for work in (
        lambda: clients.train(1, start, SETTINGS, 1, Control()),
        lambda: clients.evaluate(1, start, Control()),
    ):
        with pytest.raises(OrderError, match=r"has a tensor 'layers\.1\.bias' that it did not have at first"):
            work()


def test_a_tensor_that_changes_its_shape_is_told() -> None:
    clients = Clients(task_of(Growing), None)
    with pytest.raises(OrderError) as caught:
        clients.train(0, clients.initial_weights(3), SETTINGS, 1, Control())
    assert isinstance(caught.value.failure, Failure)
    assert caught.value.failure.code is FailureCode.TASK_RAISED
    assert "the model changed the shape of its tensor 'seen' from (1,) to" in caught.value.failure.detail


def test_a_tensor_that_travels_and_has_no_first_value_is_told() -> None:
    clients = Clients(task_of(lambda inputs: Late(inputs, True)), None)
    why = r"gave its buffer 'mean', which had none, a value; .*persistent=False"
    with pytest.raises(OrderError, match=why) as caught:
        clients.train(0, clients.initial_weights(3), SETTINGS, 1, Control())
    assert ".py:" not in str(caught.value)  # no line of the task is to blame


def test_metrics_that_change_labels_in_place_do_not_reach_the_data() -> None:
    class Spoils(Blobs):
        def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
            targets -= targets
            return {"seen": float(len(targets))}

    clients = Clients(Spoils(), None)
    model = clients.initial_weights(3)
    first, second = (clients.evaluate(1, model, Control()) for _ in range(2))
    assert first == second
    assert first.metrics == {"seen": 5.0}
