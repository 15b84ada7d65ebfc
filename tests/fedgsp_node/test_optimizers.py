"""Optimisers: options and defaults are those of torch, and a task may have one of its own."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split, Task, check
from fedgsp.errors import ConfigError, RunError, TaskError
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp.optimizers import AUTO, OPTIMIZERS, Optimizer
from fedgsp_node.clients import Clients
from fedgsp_node.optimizers import has_own, stepping
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.local_work import CrossEntropy, mlp

TORCH = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
}
#: Arguments of torch that say how a step is computed, and not which one.
NOT_OFFERED = {"foreach", "maximize", "differentiable", "fused", "capturable"}
PAIRS = {"betas": ("beta1", "beta2"), "etas": ("eta_minus", "eta_plus"), "step_sizes": ("least_step", "most_step")}


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return list(mlp().parameters())


def test_there_is_one_for_each_that_needs_no_closure_and_takes_any_parameters() -> None:
    assert set(TORCH) == set(OPTIMIZERS.built_in) - {AUTO}
    others = {kind.__name__ for kind in vars(torch.optim).values() if inspect.isclass(kind)} - {
        kind.__name__ for kind in TORCH.values()
    }
    assert others <= {"Optimizer", "LBFGS", "SparseAdam", "Muon"}


@pytest.mark.parametrize("name", TORCH)
def test_defaults_are_those_of_torch(name: str) -> None:
    part = OPTIMIZERS[name]
    ours = part.load()(parameters(), 0.1, part.read({})).defaults
    theirs = TORCH[name](parameters(), lr=0.1).defaults
    assert ours == theirs


@pytest.mark.parametrize("name", TORCH)
def test_every_argument_of_torch_is_an_option(name: str) -> None:
    known = {one for one in inspect.signature(TORCH[name]).parameters if one not in NOT_OFFERED}
    wanted = {option for one in known - {"params", "lr"} for option in PAIRS.get(one, (one,))}
    missing = wanted - set(OPTIMIZERS[name].options.__dataclass_fields__)
    assert missing <= {"decoupled_weight_decay", "eps"}
    # Adam's is adamw; Adafactor's eps is a pair of which torch derives one from the dtype.
    assert not missing or (name, *missing) in {("adam", "decoupled_weight_decay"), ("adafactor", "eps")}


def test_given_options_reach_the_optimiser() -> None:
    found = stepping(OptimizerSettings("adamw", {"beta2": "0.95", "weight_decay": "0.3"}), CrossEntropy())
    (group,) = found.optimizer(parameters(), 0.02).param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.02, (0.9, 0.95), 0.3)
    assert not found.plain


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        (None, True),
        (OptimizerSettings("auto"), True),
        (OptimizerSettings("sgd", {"momentum": "0"}), True),
        (OptimizerSettings("sgd", schedule="cosine"), True),
        (OptimizerSettings("sgd", {"momentum": "0.9"}), False),
        (OptimizerSettings("sgd", {"weight_decay": "1e-4"}), False),
        (OptimizerSettings("sgd", clip_norm=1.0), False),
        (OptimizerSettings("sgd", accumulate=2), False),
        (OptimizerSettings("adam"), False),
    ],
)
def test_plain_sgd_is_known(settings: OptimizerSettings | None, plain: bool) -> None:
    assert stepping(settings, CrossEntropy()).plain == plain


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (OptimizerSettings("adan"), "there is no optimizer 'adan'"),
        (OptimizerSettings("adam", {"momentum": "0.9"}), "optimizer adam has no option 'momentum'"),
        (OptimizerSettings("adam", {"beta1": "1"}), "option beta1 is '1'"),
        (OptimizerSettings("sgd", {"nesterov": "true"}), "nesterov needs momentum"),
        (OptimizerSettings("auto", {"momentum": "0.9"}), "optimizer auto has no option 'momentum'"),
        (OptimizerSettings("sgd", clip_norm=float("nan")), "gradients cannot be shortened to nan"),
        (OptimizerSettings("sgd", clip_norm=-1.0), "gradients cannot be shortened to -1"),
        (OptimizerSettings("sgd", schedule="sine"), "there is no schedule 'sine'"),
    ],
)
def test_a_wrong_order_is_refused(settings: OptimizerSettings, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        stepping(settings, CrossEntropy())


class Own(Task):
    """Has an optimiser of its own."""

    num_classes, num_clients = 4, 1
    found: Any = None

    def model(self) -> nn.Module:
        return mlp()

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        part = Split(rng.standard_normal((8, 10)).astype(np.float32), rng.integers(0, 4, 8))
        return ClientData(part, part)

    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        matrices = [parameter for parameter in parameters if parameter.ndim > 1]
        others = [parameter for parameter in parameters if parameter.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 2 * learning_rate}]
        return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=0.0)


class Wrong(Own):
    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        return self.found


class Raising(Own):
    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=-1)


def test_the_tasks_own_is_used_unless_another_is_named() -> None:
    assert has_own(Own())
    assert not has_own(CrossEntropy())
    found = stepping(OptimizerSettings("auto"), Own())
    assert not found.plain
    assert isinstance(found.optimizer(parameters(), 0.1), torch.optim.AdamW)
    assert stepping(OptimizerSettings("sgd"), Own()).plain


class Sharpness(torch.optim.SGD):
    """Takes the gradient a second time, elsewhere."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        closure()
        return super().step()


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "optimizer\\(\\) returned NoneType"),
        (torch.optim.Adam, "optimizer\\(\\) returned type"),
        (torch.optim.LBFGS(mlp().parameters()), "optimizer\\(\\) returned LBFGS"),
        (Sharpness(mlp().parameters()), "optimizer\\(\\) returned Sharpness, which computes several gradients"),
    ],
)
def test_what_is_no_optimiser_is_told_when_the_node_starts(found: object, told: str) -> None:
    task = Wrong()
    task.found = found
    with pytest.raises(TaskError, match=told):
        Clients(task, None).rehearse()


class Elsewhere(Own):
    """Steps the model that it made last, which is not the one that trains."""

    def model(self) -> nn.Module:
        self.last = super().model()
        return self.last

    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.last.parameters(), lr=learning_rate)


class OfCopies(torch.optim.Adam):
    """Steps copies in float64, and gives the parameters their values."""

    def __init__(self, given: list[nn.Parameter], learning_rate: float) -> None:
        self.given, self.copies = given, [nn.Parameter(one.detach().double()) for one in given]
        super().__init__(self.copies, lr=learning_rate)

    def step(self, closure: Any = None) -> Any:
        for one, copy in zip(self.given, self.copies, strict=True):
            copy.grad = None if one.grad is None else one.grad.double()
        super().step()
        with torch.no_grad():
            for one, copy in zip(self.given, self.copies, strict=True):
                one.copy_(copy)


class OfTwo(torch.optim.Optimizer):
    """Has no parameters itself, and lets two others step."""

    def __init__(self, given: list[nn.Parameter], learning_rate: float) -> None:
        super().__init__([{"params": []}], {"lr": learning_rate})
        matrices, others = ([one for one in given if (one.ndim > 1) is wanted] for wanted in (True, False))
        self.both = torch.optim.SGD(matrices, lr=learning_rate), torch.optim.Adam(others, lr=learning_rate)

    def step(self, closure: Any = None) -> Any:
        for one in self.both:
            one.step()


class Partly(Own):
    """Steps the first parameters of those that it gets."""

    def __init__(self, number: int) -> None:
        self.number = number

    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": parameters[: self.number]}], lr=learning_rate)


def trained(clients: Clients) -> list[str]:
    """The names of the tensors that a training changes."""
    start = clients.initial_weights(1)
    after = clients.train(0, start, TrainingSettings("sgd", 1, 4, 0.1, seed=1), 1, Control()).after
    return [name for name, array in after.arrays.items() if (array != start.arrays[name]).any()]


def test_an_optimiser_of_another_model_is_refused_before_and_in_a_training() -> None:
    told = (
        r"returned Adam, which steps a parameter of shape \(.*\) that is not the model's; give the optimiser the param"
    )
    with pytest.raises(TaskError, match=told):
        check(Elsewhere())
    clients = Clients(Elsewhere(), None)
    clients.initial_weights(1)  # another model
    with pytest.raises(OrderError, match=told):
        trained(clients)


@pytest.mark.parametrize("kind", [OfCopies, OfTwo])
def test_an_optimiser_that_trains_by_way_of_others_is_taken(
    kind: type[OfCopies | OfTwo], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Own()
    task.optimizer = kind  # type: ignore[method-assign]
    assert check(task).good
    assert len(trained(Clients(task, None))) == 4
    part = Optimizer(
        help="of a package",
        code=lambda given, rate, _: kind(given, rate),
        name="theirs",
        kind="optimizer",
        package="a",
    )
    monkeypatch.setitem(OPTIMIZERS.built_in, "theirs", part)
    assert isinstance(stepping(OptimizerSettings("theirs"), CrossEntropy()).optimizer(parameters(), 0.1), kind)


def test_an_optimiser_may_leave_parameters_out_but_not_all() -> None:
    assert check(Partly(1)).good
    assert trained(Clients(Partly(1), None)) == ["0.weight"]
    with pytest.raises(TaskError, match="returned Adam, which steps no parameter; give the optimiser the parameters"):
        check(Partly(0))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (lambda given, rate, _: torch.optim.SGD(mlp().parameters(), rate), "which steps a parameter of shape"),
        (lambda given, rate, _: torch.optim.SGD([{"params": []}], rate), "which steps no parameter"),
    ],
)
def test_so_it_is_with_an_optimiser_of_a_package(code: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Optimizer(help="of a package", code=code, name="theirs", kind="optimizer", package="theirs")
    monkeypatch.setitem(OPTIMIZERS.built_in, "theirs", part)
    with pytest.raises(RunError, match=told):
        stepping(OptimizerSettings("theirs"), CrossEntropy()).optimizer(parameters(), 0.1)


def test_an_optimiser_that_cannot_be_made_is_told_when_the_node_starts() -> None:
    with pytest.raises(TaskError, match=r"optimizer\(\) raised ValueError: Invalid learning rate: -1 \(test_optim"):
        Clients(Raising(), None).rehearse()
    Clients(Own(), None).rehearse()
