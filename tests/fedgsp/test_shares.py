"""How much of a step is left after the next one, as `fedgsp.shares` says it and as the optimisers of torch do it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedgsp import shares
from fedgsp.optimizers import OPTIMIZERS
from fedgsp.shares import Taken

#: Far above the gradients of this test, so that steps are as long as the gradient times a number.
EPS = 1e4


def measured(name: str, rate: float, pull: float = 0.0, state: dict[str, Any] | None = None, **given: Any) -> float:
    """How much the first of two steps counts beside the second: each one has the gradient of another weight."""
    part = OPTIMIZERS[name]
    weights = [torch.nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2)]
    optimizer = part.load()(weights, rate, part.read({key: str(value) for key, value in given.items()}))
    for entry, value in (state or {}).items():
        for weight in weights:
            optimizer.state[weight][entry] = torch.tensor(value, dtype=torch.float64)
    for step in range(2):
        for place, weight in enumerate(weights):
            weight.grad = pull * weight.detach() + (0.01 if place == step else 0.0)
        optimizer.step()
    first, second = (float(weight.detach()) for weight in weights)
    return first / second


def said(name: str, step: Taken, **given: Any) -> float:
    part = OPTIMIZERS[name]
    return part.left(part.read({key: str(value) for key, value in given.items()}), step)


LINEAR: list[tuple[str, float, dict[str, Any]]] = [
    ("sgd", 0.5, {"weight_decay": 1.2}),
    ("adam", 0.5, {"eps": EPS, "weight_decay": 1.2 * EPS, "beta1": 0}),
    ("adamw", 0.5, {"eps": EPS, "weight_decay": 1.2, "beta1": 0}),
    ("nadam", 0.5, {"eps": EPS, "weight_decay": 1.2 * EPS, "beta1": 0}),
    ("nadam", 0.5, {"eps": EPS, "weight_decay": 1.2, "beta1": 0, "decoupled_weight_decay": True}),
    ("radam", 0.5, {"weight_decay": 1.2, "beta1": 0, "decoupled_weight_decay": True}),
    ("adamax", 0.5, {"eps": EPS, "weight_decay": 1.2 * EPS, "beta1": 0, "beta2": 0}),
    ("adagrad", 0.5, {"eps": EPS, "weight_decay": 1.2 * EPS}),
    ("adagrad", 0.5, {"initial_accumulator_value": EPS * EPS, "weight_decay": 1.2 * EPS}),
    ("adadelta", 0.5, {"eps": EPS, "weight_decay": 1.2}),
    ("rmsprop", 0.5, {"eps": EPS, "weight_decay": 1.2 * EPS}),
    ("asgd", 0.5, {"lambd": 0.4, "weight_decay": 0.8, "alpha": 0}),
]


@pytest.mark.parametrize(("name", "rate", "given"), LINEAR)
def test_where_steps_are_linear_the_share_is_that_of_torch(name: str, rate: float, given: dict[str, Any]) -> None:
    assert said(name, Taken(rate), **given) == pytest.approx(0.4, abs=1e-6)
    assert measured(name, rate, **given) == pytest.approx(0.4, rel=0.02)


@pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_leaves_no_less_than_is_said(momentum: float, decay: float, nesterov: bool) -> None:
    given: dict[str, Any] = {"momentum": momentum, "weight_decay": decay, "nesterov": nesterov}
    assert measured("sgd", 1.0, **given) >= said("sgd", Taken(1.0), **given) - 1e-6
    assert measured("sgd", 1.0, pull=decay, momentum=momentum) >= said("sgd", Taken(1.0, decay), momentum=momentum)


def test_a_pull_counts_like_weight_decay() -> None:
    assert said("sgd", Taken(0.5, 1.2)) == pytest.approx(measured("sgd", 0.5, pull=1.2)) == pytest.approx(0.4)
    assert said("adamw", Taken(0.001, 1.0), weight_decay=0) == pytest.approx(0.9)
    assert said("adamw", Taken(0.5, 1.2 * EPS), weight_decay=0, eps=EPS) == pytest.approx(0.4)


@pytest.mark.parametrize("beta2", [1e-12, 0.01, 0.25])
def test_a_state_with_huge_mean_squares_makes_the_first_step_short_if_it_is_soon_forgotten(beta2: float) -> None:
    state = {"step": 9.0, "exp_avg": 0.0, "exp_avg_sq": 1e-4 / beta2**2}
    given: dict[str, Any] = {"beta1": 0, "beta2": beta2, "eps": 0}
    assert measured("adam", 0.001, state=state, **given) < 2.5 * beta2**0.5
    assert said("adam", Taken(0.001, fresh=False), **given) == pytest.approx(beta2**0.5)
    assert said("adam", Taken(0.001), **given) == 1
    assert said("rmsprop", Taken(0.001, fresh=False), alpha=beta2) == pytest.approx(beta2**0.5)
    assert said("adadelta", Taken(0.001, fresh=False), rho=beta2) == pytest.approx(beta2**0.5)


def test_a_state_that_says_how_long_steps_are_leaves_nothing() -> None:
    assert measured("asgd", 0.5, state={"step": 1.0, "eta": 0.0, "mu": 1.0, "ax": 0.0}) == 0
    assert said("asgd", Taken(0.5, fresh=False)) == 0
    for name in ("nadam", "rprop", "radam"):
        assert said(name, Taken(0.001, fresh=False, relayed=True)) == 0


def test_steps_of_rprop_grow() -> None:
    assert said("rprop", Taken(0.1), eta_plus=4) == 0.25
    assert said("rprop", Taken(0.1)) > 0.8


@pytest.mark.parametrize("beta2", [0.7, 0.9, 0.99, 0.999, 0.9999])
def test_radam_begins_to_divide_at_the_step_that_is_said(beta2: float) -> None:
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.RAdam([weight], lr=1.0, betas=(0.0, beta2), eps=0)
    lengths = []
    for _ in range(40):
        before, weight.grad = float(weight.detach()), torch.tensor(1e-9, dtype=torch.float64)
        optimizer.step()
        lengths.append(abs(float(weight.detach()) - before))
    jump = next(number for number, length in enumerate(lengths, 1) if length > 1e-6)
    assert shares.first_rectified(beta2) == jump
    left = [said("radam", Taken(0.001, number=number), beta2=beta2) for number in range(2, 40)]
    assert [number for number, one in enumerate(left, 2) if one == 0] == [jump]


def test_radam_may_never_divide() -> None:
    assert shares.first_rectified(0.6) == 0
    assert said("radam", Taken(0.001, fresh=False), beta2=0.6) > 0.7


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_with_its_defaults_each_optimiser_leaves_enough(name: str) -> None:
    assert said(name, Taken(0.001)) > 0.8
