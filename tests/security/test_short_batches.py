"""A top server orders trainings of which the result would tell a single sample: the default policy refuses them.

Each attack is carried out on a client, to show that the sample can be read from the trained model.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp.messages import OptimizerSettings, Order, OrderKey, Source, SourceKind, Start, Train, TrainingSettings
from fedgsp.settings.policy import Policy
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.policies.policy import refusal
from fedgsp_node.training.control import Control
from tests.fedgsp_node.policies.test_policy import known

SAMPLES, PIXELS = 101, 16
RNG = np.random.default_rng(7)
X = RNG.random((SAMPLES, PIXELS), dtype=np.float32)
Y = RNG.integers(0, 4, SAMPLES)


class Pictures(Task):
    num_clients, num_classes = 1, 4

    def model(self) -> nn.Module:
        made = nn.Linear(PIXELS, 4)
        nn.init.zeros_(made.weight)
        nn.init.zeros_(made.bias)
        return made

    def data(self, _client: int) -> ClientData:
        part = Split(X, Y)
        return ClientData(part, part)


class Dropping(Pictures):
    drop_last = True


def settings(
    algorithm: str = "sgd", rate: float = 0.5, batch: int = SAMPLES - 1, **options: object
) -> TrainingSettings:
    return TrainingSettings(algorithm, 1, batch, rate, 3, {key: str(value) for key, value in options.items()})


def stepped(name: str, rate: float, batch: int = SAMPLES - 1, **options: object) -> TrainingSettings:
    how = OptimizerSettings(name, {key: str(value) for key, value in options.items()})
    return dataclasses.replace(settings(rate=rate, batch=batch), optimizer=how)


def change(task: Task, asked: TrainingSettings) -> tuple[np.ndarray, np.ndarray]:
    """What a training changes in the weights and the biases."""
    clients = Clients(task, None)
    start: Weights = clients.initial_weights(0)
    after = clients.train(0, start, asked, 1, Control()).after
    weight, bias = (
        after.arrays[name].astype(np.float64) - start.arrays[name].astype(np.float64) for name in ("weight", "bias")
    )
    return weight, bias


def error_of_reading(asked: TrainingSettings, task: Task | None = None) -> float:
    """The largest error of a value of the sample that is most like what the result of a training tells."""
    weight, bias = change(task or Pictures(), asked)
    row = int(np.argmax(np.abs(bias)))
    return float(np.abs(X - weight[row] / bias[row]).max(axis=1).min())


def refused(asked: TrainingSettings, drop_last: bool = False) -> str:
    start = Start("start", (Source(SourceKind.LOCAL, "n0"),))
    order = Order(OrderKey(1, "train", 0, 0, run="run"), 0, Train(start, "end", asked))
    return str(refusal(order, Policy(), known(samples=SAMPLES, drop_last=drop_last)) or "")


ATTACKS = {
    "weight decay": stepped("sgd", 0.5, weight_decay=2.0),
    "weight decay and Nesterov's momentum": stepped("sgd", 0.5, weight_decay=14 / 9, momentum=0.5, nesterov=True),
    "weight decay and momentum": stepped("sgd", 0.5, weight_decay=3.8, momentum=0.9),
    "fedprox": settings("fedprox", mu=2.0),
    "Adam as SGD": stepped("adam", 0.5, beta1=0, beta2=0, eps=1e4, weight_decay=2e4),
    "AdamW": stepped("adamw", 0.5, beta1=0, beta2=0, eps=1e4, weight_decay=2.0),
    "RMSprop": stepped("rmsprop", 0.5, eps=1e4, weight_decay=2e4),
    "Adagrad": stepped("adagrad", 0.5, initial_accumulator_value=1e8, weight_decay=2e4),
    "Adadelta": stepped("adadelta", 0.5, eps=1e4, weight_decay=2.0),
    "Adamax": stepped("adamax", 0.5, beta1=0, eps=1e4, weight_decay=2e4),
    "NAdam": stepped("nadam", 0.5, beta1=0, beta2=0, eps=1e4, weight_decay=2.0, decoupled_weight_decay=True),
    "ASGD": stepped("asgd", 0.5, lambd=2.0, alpha=0),
    "fedmmd": dataclasses.replace(settings("fedmmd", 0.001), options={"lambda": "1e6"}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_order_whose_result_would_tell_one_sample_is_refused(name: str) -> None:
    asked = ATTACKS[name]
    assert error_of_reading(asked) < 0.01
    why = refused(asked)
    assert "a step on 1 sample, the last of an epoch, stand alone (drop_last = True in the task" in why
    assert why.endswith("(--allow least_batch_size=1)")
    assert refused(asked, drop_last=True) == ""
    assert error_of_reading(asked, Dropping()) > 0.1


ORDINARY = {
    "sgd": settings(),
    "weight decay": stepped("sgd", 0.1, weight_decay=0.01, momentum=0.9, nesterov=True),
    "fedprox": settings("fedprox", 0.1, mu=1.0),
    "ditto": settings("ditto", 0.1),
    "fedmmd": settings("fedmmd", 0.1, batch=5),
    "adam": stepped("adam", 0.001, weight_decay=0.01),
    "adamw": stepped("adamw", 0.001),
    "radam": stepped("radam", 0.001),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_epoch_may_end_with_a_batch_of_one_sample(name: str) -> None:
    assert refused(ORDINARY[name]) == ""
    assert error_of_reading(ORDINARY[name]) > 0.05
